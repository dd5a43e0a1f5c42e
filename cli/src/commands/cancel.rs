//! `cancel`: through the API server, so that it works while the gateway is away.

use agentrun_crds::agent_run_status::Phase;

use crate::arguments::Cancel;
use crate::cluster::Cluster;
use crate::commands::wait;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::{run_name, runs};

/// Writes that lost against another before this is given up.
const TRIES: usize = 8;

pub async fn run(cluster: &Cluster, arguments: &Cancel, output: &Output) -> Result<Exit, Failure> {
    let name = run_name::resolve(cluster, &arguments.run.run).await?;
    let mut tries = 0;
    loop {
        let found = runs::get(cluster, &name).await?;
        already_completed(&found, &name)?;
        if runs::ended(&found).is_some() {
            output.line(&format!("{name}: was already cancelled"))?;
            return Ok(Exit::Succeeded);
        }
        tries += 1;
        match runs::cancel(cluster, &name, &found).await {
            Ok(_) => break,
            Err(fault) if fault.status() == Some(404) => return Err(runs::absent(cluster, &name)),
            // Its status was written meanwhile.
            Err(fault) if fault.status() == Some(409) && tries < TRIES => {}
            Err(fault) => return Err(fault.failure(&format!("cancelling AgentRun {name}"))),
        }
    }
    output.line(&format!("{name}: asked to end"))?;
    if !arguments.wait {
        return Ok(Exit::Succeeded);
    }
    match wait::to_the_end(cluster, &name, None, output).await? {
        Exit::Cancelled => Ok(Exit::Succeeded),
        other => Ok(if other == Exit::Succeeded { Exit::Failed } else { other }),
    }
}

/// A run that has ended otherwise cannot be cancelled, nor one that has its result; one that is cancelled already is what was
/// asked for.
fn already_completed(run: &agentrun_crds::AgentRun, name: &str) -> Result<(), Failure> {
    let how = match runs::ended(run) {
        Some((Phase::Cancelled, ..)) => return Ok(()),
        Some((phase, reason, _)) if reason == phase.as_str() => format!("has ended as {reason}"),
        Some((phase, reason, _)) => format!("has ended as {}, {reason}", phase.as_str()),
        None if run.has_result() && !run.spec.cancel => "has its result, and ends".to_owned(),
        None => return Ok(()),
    };
    Err(Failure::new(Exit::Failed, format!("already_completed: {name} {how}")))
}
