//! The AgentRun controller: `observe → plan → apply → report`, round by round until nothing is left to write.

pub mod approvals;
pub mod expired_records;
pub mod filled;
mod git;
pub mod harness;
pub mod merge;
mod network;
pub mod objects;
pub mod observe;
pub mod plan;
pub mod queue;
pub mod record;
pub mod report;
pub mod resolve;
pub mod sandbox;
pub mod spec;
pub mod status;
pub mod sweep;
pub mod watches;

use agentrun_crds::AgentRun;
use kube::core::DeserializeGuard;

use crate::apply::{Applied, apply};
use crate::context::{Caches, Context};
use crate::error::Error;
use plan::{Again, Stage, Write};

/// Rounds of one reconcile; a start takes six.
const ROUNDS: usize = 24;

/// Bring a run as far as it goes now. `run` comes from the cache and may be old.
pub async fn reconcile(ctx: &Context, caches: &Caches, run: &DeserializeGuard<AgentRun>) -> Result<Again, Error> {
    let metadata = kube::Resource::meta(run);
    if let Ok(run) = &run.0 {
        if observe::waits(caches, run) {
            return Ok(Again::Slowly);
        }
        if let Some(facts) = observe::cached(ctx, caches, run) {
            let plan = plan::plan(run, &facts, None, (ctx.clock)());
            if plan.writes.is_empty() {
                return Ok(plan.again);
            }
        }
    }
    converge(ctx, metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default()).await
}

/// The same from live reads alone: after each round of writes the world is read again.
pub async fn converge(ctx: &Context, namespace: &str, name: &str) -> Result<Again, Error> {
    let mut refused: Option<String> = None;
    for _ in 0..ROUNDS {
        let Some(mut run) = observe::run(ctx, namespace, name).await? else { return Ok(Again::Never) };
        let observe::Observed { facts, turn } = observe::live(ctx, &run).await?;
        let plan = plan::plan(&run, &facts, refused.as_deref(), (ctx.clock)());
        if plan.writes.is_empty() {
            return Ok(plan.again);
        }
        for write in plan.writes {
            match apply(ctx, &run, write).await {
                Ok(Applied::Done) => {}
                Ok(Applied::Run(version)) => run.metadata.resource_version = Some(version),
                Ok(Applied::Conflict) => break,
                Ok(Applied::Refused(why)) => {
                    refused = Some(why);
                    break;
                }
                Err(error) => {
                    if plan::stage(&run) == Stage::Ended {
                        cleanup_failed(ctx, &run, &error).await;
                    }
                    return Err(error);
                }
            }
        }
        drop(turn); // not before the writes
    }
    Err(Error::Restless(ROUNDS))
}

/// Children that cannot be removed are a condition: it bounds how long the run is held.
async fn cleanup_failed(ctx: &Context, run: &AgentRun, error: &Error) {
    if run.status.is_none() || !plan::held(run) {
        return;
    }
    let message = format!("the sandbox's objects cannot be removed: {}", sandbox::clean(&error.to_string()));
    let next = status::Next::of(run, (ctx.clock)()).cleanup_failed(&message).done();
    if let Err(second) = apply(ctx, run, Write::Status(Box::new(next))).await {
        tracing::debug!(error = %second, "CleanupFailed could not be written");
    }
}
