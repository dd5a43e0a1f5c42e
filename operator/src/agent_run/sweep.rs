//! Removes sandbox Pods that no live run wants: left by an operator that lost its lease in the middle of a start, or by a run
//! whose finalizer somebody took away.

use std::time::Duration;

use agentrun_crds::AgentRun;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::core::DeserializeGuard;

use super::filled::Filled;
use super::objects::controller;
use super::plan::{self, Stage};
use crate::apply::delete_pod;
use crate::context::{Caches, Context};
use crate::error::Error;

const PERIOD: Duration = Duration::from_secs(60);

/// For ever; failures are logged and tried again.
pub async fn run(ctx: &Context, caches: &Caches, filled: &Filled) {
    filled.wait().await;
    loop {
        if let Err(error) = once(ctx, caches).await {
            tracing::warn!(%error, "the sweep of sandbox Pods failed; trying again later");
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// One pass over the Pods that the watch knows.
pub async fn once(ctx: &Context, caches: &Caches) -> Result<(), Error> {
    for pod in caches.pods.state() {
        if suspect(caches, &pod) {
            sweep(ctx, &pod).await?;
        }
    }
    Ok(())
}

/// By the cache, its run is gone or has let go.
fn suspect(caches: &Caches, pod: &Pod) -> bool {
    let Some(owner) = controller(&pod.metadata) else { return false };
    if pod.metadata.deletion_timestamp.is_some() {
        return false;
    }
    let run = caches.runs.find(|run| kube::Resource::meta(run).uid.as_ref() == Some(&owner.uid));
    match run.as_ref().map(|run| run.0.as_ref()) {
        None => true,
        Some(Ok(run)) => unwanted(run),
        Some(Err(_)) => false,
    }
}

/// A run that holds itself until its Pod is gone removes it by itself.
fn unwanted(run: &AgentRun) -> bool {
    plan::stage(run) == Stage::Ended && !plan::held(run)
}

async fn sweep(ctx: &Context, pod: &Pod) -> Result<(), Error> {
    let (Some(owner), Some(namespace), Some(name), Some(uid)) =
        (controller(&pod.metadata), pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref(), pod.metadata.uid.as_deref())
    else {
        return Ok(());
    };
    let runs: Api<DeserializeGuard<AgentRun>> = Api::namespaced(ctx.client.clone(), namespace);
    let found = runs.get_opt(&owner.name).await.map_err(Error::api("read the AgentRun of a Pod"))?;
    let wanted = found.is_some_and(|run| {
        kube::Resource::meta(&run).uid.as_ref() == Some(&owner.uid) && run.0.as_ref().map_or(true, |run| !unwanted(run))
    });
    if !wanted {
        tracing::warn!(namespace, name, "a sandbox Pod without a live run is removed");
        delete_pod(ctx, namespace, name, uid, false).await?;
        ctx.metrics.swept_pods.inc();
    }
    Ok(())
}
