//! Holding the lease. The lease manager takes and renews it; beside it we look ourselves, often, whether we still hold it,
//! since a lease is no fence: the process ends the moment that somebody else has it or nobody could be asked for too long.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder, LeaseParams};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Seconds that a lease is worth after its renewal; a successor of a killed leader waits as long.
const DURATION: u64 = 15;
/// Seconds before the end at which it is renewed.
const GRACE: u64 = 5;
/// How often we look.
const LOOK: Duration = Duration::from_secs(2);
/// How long we may not know. Shorter than the lease, so that we are gone before a successor begins.
const BLIND: Duration = Duration::from_secs(DURATION - GRACE / 2);

/// Which lease, and who asks.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub namespace: String,
    pub lease: String,
    /// Unique among the processes that run at once; the Pod's name.
    pub identity: String,
}

/// A lease that is held.
pub struct Leadership {
    client: Client,
    candidate: Candidate,
    held: watch::Receiver<bool>,
    task: JoinHandle<kube_lease_manager::Result<LeaseManager>>,
}

impl Leadership {
    /// Wait until the lease is ours. An API server that is away is waited for.
    pub async fn acquire(client: Client, candidate: Candidate) -> Self {
        loop {
            let parameters = LeaseParams::new(candidate.identity.clone(), DURATION, GRACE);
            let builder = LeaseManagerBuilder::new(client.clone(), candidate.lease.clone());
            match builder.with_namespace(candidate.namespace.clone()).with_parameters(parameters).build().await {
                Ok(manager) => {
                    let (mut held, task) = manager.watch().await;
                    if held.wait_for(|held| *held).await.is_ok() {
                        return Leadership { client, candidate, held, task };
                    }
                    tracing::warn!("the lease manager ended; starting another");
                }
                Err(error) => tracing::warn!(%error, lease = candidate.lease, "the lease cannot be read or made; trying again"),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends when the lease is lost, with the reason.
    pub async fn lost(&mut self) -> &'static str {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.candidate.namespace);
        let mut confirmed = Instant::now();
        loop {
            tokio::select! {
                changed = self.held.wait_for(|held| !*held) => {
                    return if changed.is_ok() { "the lease manager lost it" } else { "the lease manager ended" };
                }
                () = tokio::time::sleep(LOOK) => {}
            }
            let looked = tokio::time::timeout(LOOK, leases.get_opt(&self.candidate.lease)).await;
            let holder = match &looked {
                Ok(Ok(lease)) => Holder::Known(lease.as_ref().and_then(|lease| lease.spec.as_ref()?.holder_identity.as_deref())),
                _ => Holder::Unknown,
            };
            match judge(&holder, &self.candidate.identity, confirmed.elapsed()) {
                Verdict::Ours => confirmed = Instant::now(),
                Verdict::Unsure => {}
                Verdict::Lost(why) => return why,
            }
        }
    }

    /// Give it back, so that a successor need not wait for its end.
    pub async fn release(self) {
        drop(self.held);
        match tokio::time::timeout(Duration::from_secs(5), self.task).await {
            Ok(Ok(Ok(_))) => tracing::info!("the lease was given back"),
            _ => tracing::warn!("the lease could not be given back; it ends by itself"),
        }
    }
}

enum Holder<'a> {
    Known(Option<&'a str>),
    Unknown,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Ours,
    Unsure,
    Lost(&'static str),
}

fn judge(holder: &Holder<'_>, me: &str, blind: Duration) -> Verdict {
    match holder {
        Holder::Known(Some(holder)) if *holder == me => Verdict::Ours,
        Holder::Known(Some(_)) => Verdict::Lost("another process holds it"),
        Holder::Known(None) => Verdict::Lost("nobody holds it"),
        Holder::Unknown if blind >= BLIND => Verdict::Lost("the API server could not be asked for too long"),
        Holder::Unknown => Verdict::Unsure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        let second = Duration::from_secs(1);
        for (holder, blind, expected) in [
            (Holder::Known(Some("me")), second, Verdict::Ours),
            (Holder::Known(Some("me")), BLIND * 2, Verdict::Ours),
            (Holder::Known(Some("other")), second, Verdict::Lost("another process holds it")),
            (Holder::Known(None), second, Verdict::Lost("nobody holds it")),
            (Holder::Unknown, second, Verdict::Unsure),
            (Holder::Unknown, BLIND, Verdict::Lost("the API server could not be asked for too long")),
        ] {
            assert_eq!(judge(&holder, "me", blind), expected);
        }
        assert!(BLIND + LOOK * 2 <= Duration::from_secs(DURATION) + LOOK, "gone about when a successor may begin");
    }
}
