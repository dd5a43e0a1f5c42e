//! Runs a reconcile with a deadline, remembers failures, and turns the outcome into when to look again. A panic ends that
//! reconcile and nothing else.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use kube::Resource;
use kube::runtime::controller::Action;
use tokio::time::Instant;

use crate::agent_run;
use crate::agent_run::plan::Again;
use crate::backoff::chance;
use crate::context::{Caches, Context, Guarded};
use crate::error::Error;

/// Longest reconcile.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// The safety net: how often a run is looked at although nothing happened. A fifth more is jitter.
const SLOWLY: Duration = Duration::from_secs(60);

/// Errors end here, so the controller never sees one.
pub type Never = std::convert::Infallible;

/// As the applier wants it.
pub type Reconcile = Pin<Box<dyn Future<Output = Result<Action, Never>> + Send>>;

/// Reconcile in a task of its own.
pub fn spawn(ctx: Arc<Context>, caches: Arc<Caches>, run: Arc<Guarded>) -> Reconcile {
    let task = tokio::spawn(async move { Box::pin(drive(&ctx, &run, agent_run::reconcile(&ctx, &caches, &run))).await });
    // `drive` catches panics, so the task can only fail by being aborted at the process's end.
    Box::pin(async move { Ok(task.await.unwrap_or_else(|_| Action::await_change())) })
}

/// Run one reconcile to its end or deadline.
pub async fn drive(ctx: &Context, run: &Guarded, reconcile: impl Future<Output = Result<Again, Error>>) -> Action {
    let metadata = run.meta();
    let uid = metadata.uid.clone().unwrap_or_default();
    let started = Instant::now();
    let result = tokio::time::timeout(DEADLINE, AssertUnwindSafe(reconcile).catch_unwind()).await;
    let result = match result {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => Err(Error::Panic(said(panic.as_ref()))),
        Err(_) => Err(Error::Timeout(DEADLINE)),
    };
    let seconds = started.elapsed().as_secs_f64();
    match result {
        Ok(again) => {
            ctx.metrics.reconciled("done", seconds);
            ctx.backoff.succeeded(&uid);
            match again {
                Again::In(pause) => Action::requeue(pause),
                Again::Slowly => Action::requeue(SLOWLY.mul_f64(1.0 + chance() / 5.0)),
                Again::Never => Action::await_change(),
            }
        }
        Err(error) => {
            let class = error.class();
            ctx.metrics.reconciled(class.label(), seconds);
            let pause = ctx.backoff.failed(&uid, error.step(), class, chance());
            tracing::warn!(
                run.namespace = metadata.namespace.as_deref(),
                run.name = metadata.name.as_deref(),
                class = class.label(),
                retry.ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
                "reconciling failed: {error}"
            );
            Action::requeue(pause)
        }
    }
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
