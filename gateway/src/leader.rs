//! Which of several gateways does what one does for all: fetching sources, purging. The one that holds the Lease. A lease is no
//! fence, so nothing may depend on there being only one: what two do at once must be wasted at worst.

use std::time::Duration;

use agentrun_crds::names;
use kube::Client;
use kube_lease_manager::{LeaseManagerBuilder, LeaseParams};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Seconds that the lease is worth after its renewal; the others wait as long, whether its holder died or gave it back.
const DURATION: u64 = 10;
/// Seconds before the end at which it is renewed.
const GRACE: u64 = 4;
const RETRY: Duration = Duration::from_secs(2);
const RELEASE_TIME: Duration = Duration::from_secs(3);

/// Whether this process leads. Cheap to clone.
#[derive(Clone)]
pub struct Leader(watch::Receiver<bool>);

impl Leader {
    pub fn leads(&self) -> bool {
        *self.0.borrow()
    }

    /// Wait until this process leads; false: it never will.
    pub async fn gained(&mut self) -> bool {
        self.0.wait_for(|leads| *leads).await.is_ok()
    }

    /// Wait until this process leads no more.
    pub async fn lost(&mut self) {
        // An error says that nobody asks for the lease any more.
        let _ = self.0.wait_for(|leads| !*leads).await;
    }

    #[cfg(test)]
    pub(crate) fn for_test(leads: watch::Receiver<bool>) -> Self {
        Leader(leads)
    }
}

/// Ask for the lease of this namespace under a name that is unique among the processes that run at once, until told to stop;
/// then give it back. An API server that is away is waited for.
pub fn campaign(client: Client, namespace: String, instance: String, stop: CancellationToken) -> (Leader, JoinHandle<()>) {
    let (leads, leader) = watch::channel(false);
    let asking = tokio::spawn(async move {
        while !stop.is_cancelled() {
            let parameters = LeaseParams::new(instance.clone(), DURATION, GRACE);
            let builder = LeaseManagerBuilder::new(client.clone(), names::GATEWAY).with_namespace(namespace.clone());
            match builder.with_parameters(parameters).build().await {
                Ok(manager) => {
                    let (held, managing) = manager.watch().await;
                    follow(held, &leads, &stop).await;
                    leads.send_replace(false);
                    // The manager gives the lease back when nobody listens to it any more.
                    if stop.is_cancelled() && tokio::time::timeout(RELEASE_TIME, managing).await.is_err() {
                        tracing::warn!("the lease could not be given back; it ends by itself");
                    }
                }
                Err(error) => tracing::warn!(%error, "the lease cannot be read or made; trying again"),
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = stop.cancelled() => {}
            }
        }
    });
    (Leader(leader), asking)
}

/// Until told to stop, or until the manager has ended.
async fn follow(mut held: watch::Receiver<bool>, leads: &watch::Sender<bool>, stop: &CancellationToken) {
    loop {
        let leading = *held.borrow_and_update();
        if leads.send_replace(leading) != leading {
            tracing::info!(leading, "the lease has changed hands");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = held.changed() => if changed.is_err() { return },
        }
    }
}
