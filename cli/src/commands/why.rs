//! `why`: how a run ended or what it waits for, whose fault it is, what to do next, and the last of its events.

use std::collections::VecDeque;

use agentrun_crds::conditions::types;
use agentrun_crds::{AgentRun, AgentRunStatus};

use crate::arguments::OneRun;
use crate::cluster::Cluster;
use crate::door::Door;
use crate::event_line::Teller;
use crate::exit::{Exit, known};
use crate::failure::Failure;
use crate::follow::Follower;
use crate::output::{Color, Output};
use crate::{advice, hint, run_name, runs, visible};

/// Last lines of the story.
const LAST_EVENTS: usize = 8;

pub async fn run(cluster: &Cluster, arguments: &OneRun, output: &Output) -> Result<Exit, Failure> {
    let name = run_name::resolve(cluster, &arguments.run).await?;
    let run = runs::get(cluster, &name).await?;
    for (label, text) in story(&run, &name) {
        let label = output.paint(Color::Bold, &format!("{label:<9}"));
        output.line(&format!("{label} {}", visible::line(&text)))?;
    }
    output.line("")?;
    match last(cluster, &name).await {
        Ok(events) => {
            let mut teller = Teller::default();
            for event in events {
                for line in teller.lines(&event, &name, output) {
                    output.line(&line)?;
                }
            }
        }
        // The answer stands without them.
        Err(failure) => output.remark(&failure.message),
    }
    Ok(Exit::Succeeded)
}

fn story(run: &AgentRun, name: &str) -> Vec<(&'static str, String)> {
    let status = run.status.clone().unwrap_or_default();
    let mut rows = vec![("Run", name.to_owned())];
    match runs::ended(run) {
        Some((phase, reason, message)) => {
            let because = if reason == phase.as_str() { String::new() } else { format!(", {reason}") };
            rows.push(("Ended", format!("{}{because}", phase.as_str())));
            if !message.is_empty() {
                rows.push(("Message", message));
            }
            if let Some(reason) = known(&reason) {
                rows.push(("Meaning", reason.meaning().to_owned()));
                rows.push(("Fault", advice::whose(reason.fault()).to_owned()));
                rows.push(("Next", hint::complete(&advice::after(reason).replace("{run}", name))));
            }
        }
        None => {
            rows.push(("Now", status.phase.map_or("Pending", |phase| phase.as_str()).to_owned()));
            rows.extend(waits(&status).map(|message| ("Because", message)));
            rows.push(("Next", hint::complete(&next(&status, name))));
        }
    }
    if let Some(result) = &status.result {
        for check in &result.checks {
            let words = if check.exit_code == 0 { "passed".to_owned() } else { format!("exit status {}", check.exit_code) };
            rows.push(("Check", format!("{}: {words}", check.name)));
        }
        if result.changed_files > 0 {
            let more = if result.changed_files > 5 { ", …" } else { "" };
            let paths = result.changed_paths.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
            let files = if result.changed_files == 1 { "file" } else { "files" };
            rows.push(("Changed", format!("{} {files}: {paths}{more}", result.changed_files)));
        }
    }
    if let Some(totals) = status.approval_totals.filter(|totals| totals.asked > 0) {
        rows.push((
            "Approvals",
            format!("{} asked, {} allowed, {} denied, {} expired", totals.asked, totals.allowed, totals.denied, totals.expired),
        ));
    }
    if let Some(budget) = &status.budget {
        rows.push(("Spent", format!("{} requests, cost {}", budget.requests_text(), budget.cost_text())));
    }
    rows.extend(walls(&status).map(|walls| ("Walls", walls)));
    let network = status.conditions.iter().find(|condition| condition.type_ == types::NETWORK_ENFORCED);
    rows.extend(network.map(|condition| ("Network", condition.message.clone())));
    let failed = status.conditions.iter().find(|condition| condition.type_ == types::CLEANUP_FAILED && condition.status == "True");
    rows.extend(failed.map(|condition| ("Cleanup", condition.message.clone())));
    rows
}

/// What the runner found in place around itself, and the runtime.
fn walls(status: &AgentRunStatus) -> Option<String> {
    let walls = status.exchange.as_ref().map(|exchange| exchange.walls.join(", "))?;
    let runtime = status.resolved.as_ref().and_then(|resolved| resolved.runtime_class_name.as_deref());
    Some(format!("{walls}; runtime class: {}", runtime.unwrap_or("the cluster's own")))
}

/// The message of the condition that says most about a run that goes on.
fn waits(status: &AgentRunStatus) -> Option<String> {
    [types::AWAITING_APPROVAL, types::STALLED, types::RECONCILING].iter().find_map(|wanted| {
        let condition = status.conditions.iter().find(|condition| condition.type_ == *wanted && condition.status == "True")?;
        (!condition.message.is_empty()).then(|| condition.message.clone())
    })
}

fn next(status: &AgentRunStatus, name: &str) -> String {
    if status.pending_approvals.is_some_and(|pending| pending > 0) {
        format!("Decide: kubectl agentrun approvals {name}")
    } else {
        format!("Follow it: kubectl agentrun watch {name}")
    }
}

async fn last(cluster: &Cluster, name: &str) -> Result<VecDeque<crate::follow::Event>, Failure> {
    let mut follower = Follower::new(Door { cluster, run: name }, 0, false);
    let mut events = VecDeque::new();
    while let Some(event) = follower.next().await? {
        if events.len() == LAST_EVENTS {
            events.pop_front();
        }
        events.push_back(event);
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_story_is_told_of_every_state() {
        let run = |status: serde_json::Value| -> AgentRun {
            serde_json::from_value(json!({
                "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "metadata": { "name": "r" },
                "spec": { "instruction": "x", "source": {}, "model": "m" }, "status": status,
            }))
            .expect("a run")
        };
        let condition = |kind: &str, reason: &str, message: &str| json!({ "type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let failed = run(json!({ "phase": "Failed", "conditions": [condition("Complete", "ChecksFailed", "unit: exit status 1")] }));
        let rows = story(&failed, "r");
        assert_eq!(rows[1], ("Ended", "Failed, ChecksFailed".into()));
        assert!(rows.contains(&("Fault", "the agent's".into())));
        assert!(rows.iter().any(|(label, text)| *label == "Next" && text.contains("kubectl agentrun logs r")));
        let waiting = run(json!({
            "phase": "AwaitingApproval", "pendingApprovals": 1,
            "conditions": [condition("AwaitingApproval", "Asked", "approval 3 waits"), condition("Reconciling", "Running", "it runs")],
        }));
        assert_eq!(
            story(&waiting, "r")[1..],
            [
                ("Now", "AwaitingApproval".into()),
                ("Because", "approval 3 waits".into()),
                ("Next", "Decide: kubectl agentrun approvals r".to_owned())
            ]
        );
        assert_eq!(story(&run(json!({})), "r")[1], ("Now", "Pending".to_owned()));
        let walled = run(json!({
            "exchange": { "attempt": 1, "publicKey": "k", "nonce": "n", "at": 1, "walls": ["nonRoot", "seccomp"] },
            "conditions": [condition("NetworkEnforced", "Held", "tried and not reached: its node")],
        }));
        let rows = story(&walled, "r");
        assert!(rows.contains(&("Walls", "nonRoot, seccomp; runtime class: the cluster's own".into())));
        assert!(rows.contains(&("Network", "tried and not reached: its node".into())));
    }
}
