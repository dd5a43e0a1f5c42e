//! `wait`: to a run's end, by the API server alone. A watch says when to look; where it is not allowed or breaks, we look
//! again by ourselves.

use std::time::Duration;

use agentrun_crds::AgentRun;
use futures::StreamExt;
use kube::Api;
use kube::runtime::watcher::watch_object;

use crate::arguments::Wait;
use crate::cluster::Cluster;
use crate::commands::watch::{tell, within};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::{run_name, runs};

/// Between two looks where there is no watch.
const PAUSE: Duration = Duration::from_secs(2);
/// How long an API server may be away.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

pub async fn run(cluster: &Cluster, arguments: &Wait, output: &Output) -> Result<Exit, Failure> {
    let name = run_name::resolve(cluster, &arguments.run.run).await?;
    to_the_end(cluster, &name, arguments.timeout, output).await
}

/// Wait; the status is the run's, or `StillRunning` once the time is over.
pub async fn to_the_end(cluster: &Cluster, name: &str, time: Option<Duration>, output: &Output) -> Result<Exit, Failure> {
    within(time, name, output, async {
        let run = Box::pin(end_of(cluster, name)).await?;
        let (phase, reason, message) = runs::ended(&run).ok_or_else(|| runs::absent(cluster, name))?;
        Ok(tell(name, phase, &reason, &message, output))
    })
    .await
}

async fn end_of(cluster: &Cluster, name: &str) -> Result<AgentRun, Failure> {
    let run = runs::get(cluster, name).await?;
    if runs::ended(&run).is_some() {
        return Ok(run);
    }
    let api: Api<AgentRun> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let mut changes = watch_object(api, name).boxed();
    let mut away_since = None;
    loop {
        match changes.next().await {
            Some(Ok(Some(run))) if runs::ended(&run).is_some() => return Ok(run),
            Some(Ok(Some(_))) => away_since = None,
            Some(Ok(None)) => {
                return Err(Failure::new(Exit::NotSubmitted, format!("AgentRun {name} was deleted")));
            }
            Some(Err(_)) | None => {
                match runs::find(cluster, name).await {
                    Ok(Some(run)) if runs::ended(&run).is_some() => return Ok(run),
                    Ok(Some(_)) => away_since = None,
                    Ok(None) => return Err(Failure::new(Exit::NotSubmitted, format!("AgentRun {name} was deleted"))),
                    Err(fault) => {
                        let since = *away_since.get_or_insert_with(tokio::time::Instant::now);
                        if !fault.is_passing() || since.elapsed() > PATIENCE {
                            return Err(fault.failure(&format!("waiting for AgentRun {name}")));
                        }
                    }
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
