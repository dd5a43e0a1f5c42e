//! `cancel`: through the API server, so that it works while the gateway is away.

use agentrun_crds::agent_run_status::Phase;

use crate::arguments::Cancel;
use crate::cluster::Cluster;
use crate::commands::wait;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::{run_name, runs};

pub async fn run(cluster: &Cluster, arguments: &Cancel, output: &Output) -> Result<Exit, Failure> {
    let name = run_name::resolve(cluster, &arguments.run.run).await?;
    already_completed(&runs::get(cluster, &name).await?, &name)?;
    let run = match runs::cancel(cluster, &name).await {
        Ok(run) => run,
        Err(fault) if fault.status() == Some(404) => return Err(runs::absent(cluster, &name)),
        Err(fault) => return Err(fault.failure(&format!("cancelling AgentRun {name}"))),
    };
    // The answer is the object as it stood when the wish was written: who came first is decided there.
    already_completed(&run, &name)?;
    output.line(&format!("{name}: asked to end"))?;
    if !arguments.wait {
        return Ok(Exit::Succeeded);
    }
    match wait::to_the_end(cluster, &name, None, output).await? {
        Exit::Cancelled => Ok(Exit::Succeeded),
        other => Ok(if other == Exit::Succeeded { Exit::Failed } else { other }),
    }
}

/// A run that has ended otherwise cannot be cancelled; one that is cancelled already is what was asked for.
fn already_completed(run: &agentrun_crds::AgentRun, name: &str) -> Result<(), Failure> {
    match runs::ended(run) {
        Some((phase, reason, _)) if phase != Phase::Cancelled => Err(Failure::new(
            Exit::Failed,
            format!(
                "already_completed: {name} has ended as {}{}",
                phase.as_str(),
                if reason == phase.as_str() { String::new() } else { format!(", {reason}") }
            ),
        )),
        _ => Ok(()),
    }
}
