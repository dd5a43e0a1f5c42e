//! Secrets of the gateway's own namespace that are followed by name: the token keys and the serving certificate.

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};

/// Call `changed` with the Secret as it is and whenever it changes, for ever. A Secret that is not there yet is waited for; one
/// that is deleted leaves what was last taken in place.
pub async fn follow(client: Client, namespace: String, name: &'static str, mut changed: impl FnMut(Secret) + Send) {
    let api: Api<Secret> = Api::namespaced(client, &namespace);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    loop {
        match events.try_next().await {
            Ok(Some(watcher::Event::InitApply(secret) | watcher::Event::Apply(secret))) => changed(secret),
            Ok(Some(watcher::Event::Init)) => {}
            Ok(Some(watcher::Event::InitDone)) => tracing::debug!(secret = name, "watching"),
            Ok(Some(watcher::Event::Delete(_))) => tracing::warn!(secret = name, "the Secret was deleted; what it held is kept"),
            Ok(None) => return,
            Err(error) => tracing::warn!(%error, secret = name, "the watch of a Secret failed; it is resumed"),
        }
    }
}
