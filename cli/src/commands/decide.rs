//! `approve` and `deny`. What is decided on is printed, and the decision carries its digest, so nothing else can be allowed.

use agentrun_crds::agent_run_status::{ApprovalScope, ApprovalState};
use agentrun_protocol::people::{ApprovalView, Decision, DecisionRequest};

use crate::arguments::{Approve, Deny};
use crate::cluster::{Cluster, Fault};
use crate::commands::approvals;
use crate::door::Door;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::{run_name, visible};

/// Longest reason.
const MAX_REASON: usize = 256;
/// Tries while nobody answers; a decision may be repeated by who made it.
const TRIES: u32 = 4;

pub async fn approve(cluster: &Cluster, arguments: &Approve, output: &Output) -> Result<Exit, Failure> {
    let decision = if arguments.session { Decision::AllowSession } else { Decision::AllowOnce };
    let name = run_name::resolve(cluster, &arguments.run.run).await?;
    decide(&Door { cluster, run: &name }, arguments.id, decision, arguments.reason.clone(), arguments.digest.as_deref(), output).await
}

pub async fn deny(cluster: &Cluster, arguments: &Deny, output: &Output) -> Result<Exit, Failure> {
    let decision = if arguments.cancel { Decision::Cancel } else { Decision::Deny };
    let name = run_name::resolve(cluster, &arguments.run.run).await?;
    decide(&Door { cluster, run: &name }, arguments.id, decision, arguments.reason.clone(), None, output).await
}

async fn decide(
    door: &Door<'_>,
    id: i64,
    decision: Decision,
    reason: Option<String>,
    digest: Option<&str>,
    output: &Output,
) -> Result<Exit, Failure> {
    if reason.as_ref().is_some_and(|reason| reason.chars().count() > MAX_REASON) {
        return Err(Failure::usage(format!("--reason takes at most {MAX_REASON} characters")));
    }
    let view = door.approval(id).await.map_err(|fault| refused(door, id, fault))?;
    if let Some(digest) = digest.filter(|digest| digest.strip_prefix("sha256:").unwrap_or(digest) != view.digest) {
        return Err(Failure::new(Exit::Failed, format!("digest_mismatch: approval {id} is bound to {}, not to {digest}", view.digest)));
    }
    let now = jiff::Timestamp::now().as_second();
    let allows = matches!(decision, Decision::AllowOnce | Decision::AllowSession);
    if view.state == ApprovalState::Pending {
        // The head says how long it waits; the commands below are what is being done.
        let lines = approvals::lines(&view, door.run, None, now, output);
        for line in &lines[..lines.len() - 1] {
            output.line(line)?;
        }
    }
    if view.shown_truncated && allows && digest.is_none() {
        return Err(Failure::new(Exit::Failed, format!("approval {id} is too large to be shown whole, so nothing was decided")).advice(
            format!("Look at all of it as said above, then: kubectl agentrun approve {} {id} --digest {}", door.run, view.digest),
        ));
    }
    let request = DecisionRequest { decision, digest: Some(view.digest), reason };
    let mut tries = 0;
    let decided = loop {
        tries += 1;
        match door.decide(id, &request).await {
            Ok(view) => break view,
            Err(fault) if fault.is_passing() && tries < TRIES => {
                tokio::time::sleep(std::time::Duration::from_millis(250) * 2u32.pow(tries)).await;
            }
            Err(fault) => return Err(refused(door, id, fault)),
        }
    };
    output.line(&outcome(&decided, decision, door.run))?;
    Ok(Exit::Succeeded)
}

fn outcome(view: &ApprovalView, decision: Decision, run: &str) -> String {
    let words = match (decision, view.scope) {
        (Decision::Deny, _) => "denied; the agent goes on without it",
        (Decision::Cancel, _) => "denied; the run ends",
        (_, Some(ApprovalScope::Session)) => "allowed, and the same action again in this run",
        _ => "allowed once",
    };
    visible::line(&format!("{run} {}: {words}", view.id))
}

/// A conflict says what it became and who decided: the gateway's own words.
fn refused(door: &Door<'_>, id: i64, fault: Fault) -> Failure {
    let what = format!("approval {id} of {}", door.run);
    match fault {
        Fault::Refused(refusal) if refusal.from_gateway && matches!(refusal.status, 404 | 409) => {
            let code = if refusal.code.is_empty() { String::new() } else { format!("{}: ", refusal.code) };
            let failure = Failure::new(
                if refusal.status == 404 { Exit::NotSubmitted } else { Exit::Failed },
                format!("{what}: {code}{}", refusal.message),
            );
            failure.advice(format!("How things stand: kubectl agentrun approvals {}", door.run))
        }
        Fault::Refused(refusal) if refusal.status == 403 && (!refusal.from_gateway || refusal.code == "forbidden") => {
            let failure = Fault::Refused(refusal).failure(&what);
            failure.advice("Deciding needs the role agentrun-approver in this namespace; submitting runs does not give it.")
        }
        fault => door.failure(fault, &what),
    }
}
