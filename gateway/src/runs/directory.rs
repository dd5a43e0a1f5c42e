//! Every AgentRun by UID, from a watch, plus confirmations by consistent read that are at most two seconds old. What hands
//! out authority asks `confirm_live`; what only needs to find a run asks `get`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agentrun_crds::AgentRun;
use futures::TryStreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use crate::error::ApiError;
use crate::status_update::version;

/// How long a consistent read counts, from the moment before it was sent.
pub const CONFIRMATION_TTL: Duration = Duration::from_secs(2);
/// Longest wait for one consistent read.
const READ_TIMEOUT: Duration = Duration::from_millis(1500);

/// A consistent read of one run.
#[derive(Default)]
struct Confirmation {
    /// The last one, and the moment before it was sent.
    last: Mutex<Option<(Instant, Arc<AgentRun>)>>,
    /// Held by who reads now, so that all who need the same wait for one read.
    reading: tokio::sync::Mutex<()>,
}

impl Confirmation {
    fn last(&self) -> Option<(Instant, Arc<AgentRun>)> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn within(&self, age: Duration) -> Option<(Instant, Arc<AgentRun>)> {
        self.last().filter(|(since, _)| since.elapsed() < age)
    }

    /// Take another one, unless a later one is known.
    fn take(&self, since: Instant, run: Arc<AgentRun>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|(before, _)| *before <= since) {
            *last = Some((since, run));
        }
    }

    fn forget(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub struct RunDirectory {
    client: Client,
    runs: Arc<Mutex<Runs>>,
    changes: broadcast::Sender<Arc<AgentRun>>,
    synced: Arc<watch::Sender<bool>>,
}

#[derive(Default)]
struct Runs {
    by_uid: HashMap<String, Arc<AgentRun>>,
    uid_by_name: HashMap<(String, String), String>,
    confirmations: HashMap<String, Arc<Confirmation>>,
    /// UIDs seen since the last `Init`, while a list is in progress.
    listing: Option<HashMap<String, Arc<AgentRun>>>,
}

impl RunDirectory {
    /// An empty directory; `run` fills it.
    pub fn new(client: Client) -> Self {
        RunDirectory { client, runs: Arc::default(), changes: broadcast::channel(1024).0, synced: Arc::new(watch::channel(false).0) }
    }

    /// Follow the API server for ever. Errors are logged and retried with backoff.
    pub async fn run(self) {
        let api: Api<AgentRun> = Api::all(self.client.clone());
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
        loop {
            match events.try_next().await {
                Ok(Some(event)) => self.apply(event),
                Ok(None) => return,
                Err(error) => tracing::warn!(%error, "the watch of AgentRuns failed; it is resumed"),
            }
        }
    }

    fn apply(&self, event: watcher::Event<AgentRun>) {
        let mut runs = self.lock();
        match event {
            watcher::Event::Init => runs.listing = Some(HashMap::new()),
            watcher::Event::InitApply(run) => {
                let run = Arc::new(seen(run));
                if let Some(listing) = &mut runs.listing {
                    listing.insert(super::uid(&run).to_owned(), run.clone());
                }
                runs.insert(run.clone());
                let _ = self.changes.send(run);
            }
            watcher::Event::InitDone => {
                let listed = runs.listing.take().unwrap_or_default();
                let gone: Vec<String> = runs.by_uid.keys().filter(|uid| !listed.contains_key(*uid)).cloned().collect();
                for uid in gone {
                    runs.remove(&uid);
                }
                drop(runs);
                self.synced.send_replace(true);
            }
            watcher::Event::Apply(run) => {
                let run = Arc::new(seen(run));
                runs.insert(run.clone());
                let _ = self.changes.send(run);
            }
            watcher::Event::Delete(run) => runs.remove(super::uid(&run)),
        }
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

    /// A run by UID, as last seen by the watch, without the contents of its inline files.
    pub fn get(&self, uid: &str) -> Option<Arc<AgentRun>> {
        self.lock().by_uid.get(uid).cloned()
    }

    /// A run by namespace and name, as last seen by the watch.
    pub fn get_named(&self, namespace: &str, name: &str) -> Option<Arc<AgentRun>> {
        let runs = self.lock();
        let uid = runs.uid_by_name.get(&(namespace.to_owned(), name.to_owned()))?;
        runs.by_uid.get(uid).cloned()
    }

    /// A run by namespace and name; one that the watch has not brought yet is read, so that whoever has just made it finds it.
    /// No answer from the API server: 503.
    pub async fn find_named(&self, namespace: &str, name: &str) -> Result<Option<Arc<AgentRun>>, ApiError> {
        if let Some(run) = self.get_named(namespace, name) {
            return Ok(Some(run));
        }
        let api: Api<AgentRun> = Api::namespaced(self.client.clone(), namespace);
        match tokio::time::timeout(READ_TIMEOUT, api.get_opt(name)).await {
            Ok(Ok(run)) => Ok(run.map(|run| Arc::new(slim(run)))),
            Ok(Err(error)) => Err(ApiError::api_server(error)),
            Err(_) => Err(ApiError::api_server("reading an AgentRun took too long")),
        }
    }

    /// Whether a run is gone for good. What the watch does not know is read: another gateway may have seen a run before this one.
    pub async fn is_gone(&self, namespace: &str, name: &str, uid: &str) -> Result<bool, ApiError> {
        if self.get(uid).is_some() {
            return Ok(false);
        }
        let api: Api<AgentRun> = Api::namespaced(self.client.clone(), namespace);
        match tokio::time::timeout(READ_TIMEOUT, api.get_opt(name)).await {
            Ok(Ok(run)) => Ok(run.is_none_or(|run| super::uid(&run) != uid)),
            Ok(Err(error)) => Err(ApiError::api_server(error)),
            Err(_) => Err(ApiError::api_server("reading an AgentRun took too long")),
        }
    }

    /// Wait until the watch has brought a run, or until patience is at its end.
    pub async fn wait_for(&self, uid: &str, patience: Duration) {
        let mut changes = self.changes();
        let seen = async { while self.get(uid).is_none() && !matches!(changes.recv().await, Err(broadcast::error::RecvError::Closed)) {} };
        let _ = tokio::time::timeout(patience, seen).await;
    }

    /// Every run, as last seen by the watch.
    pub fn snapshot(&self) -> Vec<Arc<AgentRun>> {
        self.lock().by_uid.values().cloned().collect()
    }

    /// Each run whenever the watch brings it. A receiver that lags (`RecvError::Lagged`) takes a `snapshot` again.
    pub fn changes(&self) -> broadcast::Receiver<Arc<AgentRun>> {
        self.changes.subscribe()
    }

    /// The run by a consistent read that is at most `CONFIRMATION_TTL` old. Unknown UIDs and runs that were deleted or
    /// replaced: 401 `inactive_run_token`. No answer from the API server: 503, nothing is granted.
    pub async fn confirm_live(&self, uid: &str) -> Result<Arc<AgentRun>, ApiError> {
        self.confirm_within(uid, CONFIRMATION_TTL).await.map(|(_, run)| run)
    }

    /// As `confirm_live`, but with a confirmation no older than `age`; also says since when it counts.
    pub async fn confirm_within(&self, uid: &str, age: Duration) -> Result<(Instant, Arc<AgentRun>), ApiError> {
        let (known, confirmation) = {
            let mut runs = self.lock();
            let known = runs.by_uid.get(uid).cloned().ok_or_else(ApiError::inactive_run_token)?;
            let confirmation = match runs.confirmations.get(uid) {
                Some(confirmation) => confirmation.clone(),
                None => runs.confirmations.entry(uid.to_owned()).or_default().clone(),
            };
            (known, confirmation)
        };
        if let Some(confirmed) = confirmation.within(age) {
            return Ok(confirmed);
        }
        let _reading = confirmation.reading.lock().await;
        if let Some(confirmed) = confirmation.within(age) {
            return Ok(confirmed);
        }
        let since = Instant::now();
        let api: Api<AgentRun> = Api::namespaced(self.client.clone(), super::namespace(&known));
        let read = tokio::time::timeout(READ_TIMEOUT, api.get_opt(super::name(&known))).await;
        match read {
            Ok(Ok(Some(run))) if super::uid(&run) == uid => {
                let run = Arc::new(slim(run));
                confirmation.take(since, run.clone());
                Ok((since, run))
            }
            Ok(Ok(_)) => {
                confirmation.forget();
                Err(ApiError::inactive_run_token())
            }
            Ok(Err(error)) => Err(ApiError::api_server(error)),
            Err(_) => Err(ApiError::api_server("a consistent read of an AgentRun took too long")),
        }
    }

    /// The run as last written by us or seen by the watch, whichever is newer: a first guess for a compare-and-swap.
    pub fn freshest(&self, uid: &str) -> Option<Arc<AgentRun>> {
        let (seen, confirmation) = {
            let runs = self.lock();
            (runs.by_uid.get(uid).cloned(), runs.confirmations.get(uid).cloned())
        };
        let written = confirmation.and_then(|confirmation| confirmation.last()).map(|(_, run)| run);
        match (seen, written) {
            (Some(seen), Some(written)) => Some(if version(&*written) > version(&*seen) { written } else { seen }),
            (seen, written) => seen.or(written),
        }
    }

    /// Take a run that a write of ours has just returned as a confirmation; `since` is the moment before it was sent.
    pub fn confirmed(&self, since: Instant, run: AgentRun) -> Arc<AgentRun> {
        let run = Arc::new(slim(run));
        self.lock().confirmations.entry(super::uid(&run).to_owned()).or_default().take(since, run.clone());
        run
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As the watch does it, telling those who follow the changes.
    #[cfg(test)]
    pub(crate) fn changed_for_test(&self, run: AgentRun) {
        self.apply(watcher::Event::Apply(run));
    }

    /// Put a run in, as if the watch had brought it.
    #[doc(hidden)]
    pub fn insert_for_test(&self, run: AgentRun) {
        let run = Arc::new(run);
        self.lock().insert(run.clone());
        let _ = self.changes.send(run);
        self.synced.send_replace(true);
    }
}

impl Runs {
    fn insert(&mut self, run: Arc<AgentRun>) {
        let uid = super::uid(&run).to_owned();
        if super::is_terminal(&run) {
            self.confirmations.remove(&uid);
        }
        self.uid_by_name.insert((super::namespace(&run).to_owned(), super::name(&run).to_owned()), uid.clone());
        self.by_uid.insert(uid, run);
    }

    fn remove(&mut self, uid: &str) {
        if let Some(run) = self.by_uid.remove(uid) {
            let key = (super::namespace(&run).to_owned(), super::name(&run).to_owned());
            if self.uid_by_name.get(&key).is_some_and(|current| current == uid) {
                self.uid_by_name.remove(&key);
            }
        }
        self.confirmations.remove(uid);
    }
}

/// As the watch keeps it: without the contents of inline files, which would be most of the memory. Consistent reads have them.
fn seen(run: AgentRun) -> AgentRun {
    let mut run = slim(run);
    for file in run.spec.source.inline.iter_mut().flat_map(|inline| &mut inline.files) {
        file.content = String::new();
    }
    run
}

/// Managed fields are of no use here and can be larger than the rest.
fn slim(mut run: AgentRun) -> AgentRun {
    run.metadata.managed_fields = None;
    run
}
