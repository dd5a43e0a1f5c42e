//! Single objects that are followed by name: the token keys, the serving certificate, and what the cluster says of its front
//! proxy.

use std::fmt::Debug;

use futures::TryStreamExt;
use kube::core::NamespaceResourceScope;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

/// Call `changed` with the object as it is and whenever it changes, for ever. One that is not there yet is waited for; one that
/// is deleted leaves what was last taken in place.
pub async fn follow<K>(client: Client, namespace: String, name: &'static str, mut changed: impl FnMut(K) + Send)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug + Send + 'static,
{
    let kind = K::kind(&());
    let api: Api<K> = Api::namespaced(client, &namespace);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    loop {
        match events.try_next().await {
            Ok(Some(watcher::Event::InitApply(object) | watcher::Event::Apply(object))) => changed(object),
            Ok(Some(watcher::Event::Init)) => {}
            Ok(Some(watcher::Event::InitDone)) => tracing::debug!(%kind, name, "watching"),
            Ok(Some(watcher::Event::Delete(_))) => tracing::warn!(%kind, name, "the object was deleted; what it held is kept"),
            Ok(None) => return,
            Err(error) => tracing::warn!(%error, %kind, name, "the watch of an object failed; it is resumed"),
        }
    }
}
