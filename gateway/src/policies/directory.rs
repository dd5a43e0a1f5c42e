//! Every namespace's AgentPolicy `default`, as last seen by the watch or written by us, whichever is newer.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agentrun_crds::{AgentPolicy, names};
use futures::TryStreamExt;
use kube::core::DeserializeGuard;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use tokio::sync::{broadcast, watch};

use super::namespace;
use crate::status_update::version;

/// Cheap to clone.
#[derive(Clone)]
pub struct PolicyDirectory {
    policies: Arc<Mutex<HashMap<String, Arc<AgentPolicy>>>>,
    changes: broadcast::Sender<Arc<AgentPolicy>>,
    synced: Arc<watch::Sender<bool>>,
}

impl Default for PolicyDirectory {
    /// An empty one; `run` fills it.
    fn default() -> Self {
        PolicyDirectory { policies: Arc::default(), changes: broadcast::channel(256).0, synced: Arc::new(watch::channel(false).0) }
    }
}

impl PolicyDirectory {
    /// Follow the API server for ever. Errors are logged and retried with backoff. A policy that does not parse changes nothing:
    /// what was last known of it counts.
    pub async fn run(self, client: Client) {
        let api: Api<DeserializeGuard<AgentPolicy>> = Api::all(client);
        let config = watcher::Config::default().fields(&format!("metadata.name={}", names::POLICY));
        let mut events = std::pin::pin!(watcher(api, config).default_backoff());
        let mut listed = HashSet::new();
        loop {
            match events.try_next().await {
                Ok(Some(watcher::Event::Init)) => listed.clear(),
                Ok(Some(watcher::Event::InitApply(policy))) => {
                    listed.extend(policy.meta().namespace.clone());
                    self.seen(policy);
                }
                Ok(Some(watcher::Event::InitDone)) => {
                    self.lock().retain(|namespace, _| listed.contains(namespace));
                    self.synced.send_replace(true);
                }
                Ok(Some(watcher::Event::Apply(policy))) => self.seen(policy),
                Ok(Some(watcher::Event::Delete(policy))) => {
                    let mut policies = self.lock();
                    let namespace = policy.meta().namespace.as_deref().unwrap_or_default();
                    if policies.get(namespace).is_some_and(|known| known.metadata.uid == policy.meta().uid) {
                        policies.remove(namespace);
                    }
                }
                Ok(None) => return,
                Err(error) => tracing::warn!(%error, "the watch of AgentPolicies failed; it is resumed"),
            }
        }
    }

    fn seen(&self, policy: DeserializeGuard<AgentPolicy>) {
        match policy.0 {
            Ok(policy) => self.put(policy),
            Err(invalid) => {
                let namespace = invalid.metadata.namespace.as_deref().unwrap_or_default();
                tracing::error!(
                    namespace,
                    error = invalid.error,
                    "an AgentPolicy does not parse; CRDs and gateway are of different versions"
                );
            }
        }
    }

    fn put(&self, mut policy: AgentPolicy) {
        policy.metadata.managed_fields = None;
        let policy = Arc::new(policy);
        let mut policies = self.lock();
        let newer = |known: &Arc<AgentPolicy>| known.metadata.uid != policy.metadata.uid || version(&**known) < version(&*policy);
        if policies.get(namespace(&policy)).is_none_or(newer) {
            policies.insert(namespace(&policy).to_owned(), policy.clone());
            let _ = self.changes.send(policy);
        }
    }

    /// Take what a write of ours has just returned.
    pub(super) fn written(&self, policy: AgentPolicy) -> Arc<AgentPolicy> {
        self.put(policy.clone());
        Arc::new(policy)
    }

    /// Wait until the first list is complete.
    pub async fn wait_synced(&self) {
        let mut synced = self.synced.subscribe();
        // The sender lives in self, so this cannot fail.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Whether the first list is complete.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// A namespace's policy.
    pub fn get(&self, namespace: &str) -> Option<Arc<AgentPolicy>> {
        self.lock().get(namespace).cloned()
    }

    /// Every policy.
    pub fn snapshot(&self) -> Vec<Arc<AgentPolicy>> {
        self.lock().values().cloned().collect()
    }

    /// Each policy when it changes. A receiver that lags (`RecvError::Lagged`) takes a `snapshot` again.
    pub fn changes(&self) -> broadcast::Receiver<Arc<AgentPolicy>> {
        self.changes.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<AgentPolicy>>> {
        self.policies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Put policies in, as if the watch had brought them.
    #[cfg(test)]
    pub(crate) fn insert_for_test(&self, policies: impl IntoIterator<Item = AgentPolicy>) {
        policies.into_iter().for_each(|policy| self.put(policy));
        self.synced.send_replace(true);
    }
}
