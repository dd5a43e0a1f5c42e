//! Writes the gateway's own events. Those of phase, result and end follow the committed status: as the watch brings it, and
//! again at start, for what happened while we were away. `end` comes last and closes the log. Of several gateways each does so, and
//! what one has written is written: the same status gives the same keys. (Two that see a run at different moments may write its
//! phases in another order than they followed each other; each stands there once, and none after the end.)

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agentrun_crds::AgentRun;
use agentrun_crds::agent_run_status::ApprovalState;
use agentrun_protocol::event::EventType;
use futures::StreamExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;

use super::approval_events::unknown_outcome;
use super::cut_short::without_outcome;
use super::derive::{Derived, derive};
use crate::app::Recorder;
use crate::artifacts::PATCH_NAME;
use crate::runs::{self, RunDirectory};
use crate::store::{Digest, NewRecord, Origin, RunRef, StoreError, Stores};

/// How many runs are written at once; each run's events stay in order.
const AT_ONCE: usize = 64;
/// How often logs of deleted runs are looked for.
const SWEEP: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);
/// How long events wait for others that are written with them.
const TOGETHER: Duration = Duration::from_millis(50);

/// Cheap to clone.
#[derive(Clone)]
pub struct LogRecorder {
    stores: Stores,
    soon: Arc<Mutex<Vec<Soon>>>,
    /// Held by whoever writes what was to be recorded soon, so that nothing overtakes it.
    flushing: Arc<tokio::sync::Mutex<()>>,
}

/// An event that waits for company.
struct Soon {
    run: Arc<AgentRun>,
    record: NewRecord,
}

impl Recorder for LogRecorder {
    fn record(&self, run: Arc<AgentRun>, key: String, kind: EventType, data: Value) -> BoxFuture<'static, ()> {
        let recorder = self.clone();
        Box::pin(async move {
            recorder.write_soon().await;
            recorder.append(&run, vec![NewRecord::new(key, kind, &data)]).await;
        })
    }

    fn record_soon(&self, run: Arc<AgentRun>, key: String, kind: EventType, data: Value) {
        let record = NewRecord::new(key, kind, &data);
        let first = {
            let mut soon = self.soon.lock().unwrap_or_else(PoisonError::into_inner);
            soon.push(Soon { run, record });
            soon.len() == 1
        };
        if first {
            let recorder = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(TOGETHER).await;
                recorder.write_soon().await;
            });
        }
    }

    fn flush(&self) -> BoxFuture<'static, ()> {
        let recorder = self.clone();
        Box::pin(async move { recorder.write_soon().await })
    }
}

impl LogRecorder {
    pub fn new(stores: Stores) -> Self {
        LogRecorder { stores, soon: Arc::default(), flushing: Arc::default() }
    }

    /// Write what was to be recorded soon, one append a run.
    async fn write_soon(&self) {
        let _one_at_a_time = self.flushing.lock().await;
        let soon = std::mem::take(&mut *self.soon.lock().unwrap_or_else(PoisonError::into_inner));
        let mut by_run: Vec<(Arc<AgentRun>, Vec<NewRecord>)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        for Soon { run, record } in soon {
            let place = *places.entry(runs::uid(&run).to_owned()).or_insert(by_run.len());
            match by_run.get_mut(place) {
                Some((_, records)) => records.push(record),
                None => by_run.push((run, vec![record])),
            }
        }
        for (run, records) in by_run {
            self.append(&run, records).await;
        }
    }

    async fn append(&self, run: &AgentRun, records: Vec<NewRecord>) {
        let attempt = run.status.as_ref().and_then(|status| status.attempt).unwrap_or(0);
        if let Err(error) = self.stores.events.append(&RunRef::of(run), attempt, Origin::Gateway, records).await {
            tracing::warn!(%error, run = runs::uid(run), "events of the gateway were not recorded");
        }
    }

    /// Follow the directory for ever. A write that fails is tried again; nothing is skipped.
    pub async fn run(self, directory: RunDirectory) {
        let mut changes = directory.changes();
        directory.wait_synced().await;
        let mut pending: HashMap<String, Arc<AgentRun>> = by_uid(directory.snapshot());
        let mut written: HashMap<String, Derived> = HashMap::new();
        let mut sweep = tokio::time::interval(SWEEP);
        loop {
            self.write(&mut pending, &mut written).await;
            tokio::select! {
                change = changes.recv() => match change {
                    Ok(run) => drop(pending.insert(runs::uid(&run).to_owned(), run)),
                    Err(RecvError::Lagged(_)) => pending.extend(by_uid(directory.snapshot())),
                    Err(RecvError::Closed) => return,
                },
                _ = sweep.tick() => {
                    written.retain(|uid, _| directory.get(uid).is_some());
                    pending.retain(|uid, _| directory.get(uid).is_some());
                    if let Err(error) = self.close_deleted(&directory).await {
                        tracing::warn!(%error, "closing the logs of deleted runs failed; it is tried again");
                    }
                }
                () = tokio::time::sleep(RETRY), if !pending.is_empty() => {}
            }
            // What has come meanwhile goes together.
            while let Ok(run) = changes.try_recv() {
                pending.insert(runs::uid(&run).to_owned(), run);
            }
        }
    }

    /// Write what the pending runs' status says and has not been written; what fails stays pending.
    async fn write(&self, pending: &mut HashMap<String, Arc<AgentRun>>, written: &mut HashMap<String, Derived>) {
        let work: Vec<_> = pending
            .drain()
            .map(|(uid, run)| (derive(&run), uid, run))
            .filter(|(derived, uid, _)| written.get(uid) != Some(derived))
            .collect();
        let mut outcomes = futures::stream::iter(work)
            .map(|(derived, uid, run)| async move { (self.observe(&run, &derived).await, derived, uid, run) })
            .buffer_unordered(AT_ONCE);
        while let Some((outcome, derived, uid, run)) = outcomes.next().await {
            match outcome {
                Ok(()) => drop(written.insert(uid, derived)),
                Err(error) => {
                    tracing::warn!(%error, uid, "recording a run's status failed; it is tried again");
                    pending.insert(uid, run);
                }
            }
        }
    }

    /// Append what is missing, one event at a time: one that was recorded in other words must not hold up the end.
    async fn observe(&self, run: &AgentRun, derived: &Derived) -> Result<(), StoreError> {
        if derived.ends || run.status.as_ref().is_some_and(|status| status.result.is_some()) {
            self.write_soon().await;
        }
        let reference = RunRef::of(run);
        let state = self.stores.events.state(&reference.uid).await?.unwrap_or_default();
        if state.closed {
            return Ok(());
        }
        self.name_patch(run, &reference).await?;
        for record in self.complete(run, derived).await? {
            let mut record = record;
            if record.kind == EventType::End && state.dropped > 0 {
                let mut data: Value = serde_json::from_str(&record.data).unwrap_or_else(|_| json!({}));
                data["droppedEvents"] = state.dropped.into();
                record.data = data.to_string();
            }
            match self.stores.events.append(&reference, derived.attempt, Origin::Gateway, vec![record]).await {
                Ok(_) | Err(StoreError::KeyConflict { .. } | StoreError::Closed) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What is derived, with what only the log itself can tell before the end.
    async fn complete(&self, run: &AgentRun, derived: &Derived) -> Result<Vec<NewRecord>, StoreError> {
        let mut records = derived.records.clone();
        if derived.ends {
            let consumed = || {
                let approvals = run.status.iter().flat_map(|status| &status.approvals);
                approvals.filter(|approval| approval.state == ApprovalState::Consumed)
            };
            let ids = consumed().map(|approval| approval.id).collect();
            let unknown = without_outcome(&*self.stores.events, runs::uid(run), ids).await?;
            let at = records.len().saturating_sub(1);
            records.splice(at..at, consumed().filter(|approval| unknown.contains(&approval.id)).map(unknown_outcome));
        }
        Ok(records)
    }

    /// The intake names the patch; should it have been stopped before, this does.
    async fn name_patch(&self, run: &AgentRun, reference: &RunRef) -> Result<(), StoreError> {
        let patch = run.status.as_ref().and_then(|status| status.result.as_ref()).and_then(|result| result.patch.as_ref());
        let Some(digest) = patch.and_then(|patch| Digest::parse(&patch.digest).ok()) else { return Ok(()) };
        match self.stores.artifacts.name(reference, Origin::Gateway, PATCH_NAME, digest).await {
            Err(error @ (StoreError::NoBlob(_) | StoreError::NameTaken(_))) => {
                tracing::error!(%error, uid = reference.uid, "the patch of a result cannot be named");
                Ok(())
            }
            other => other,
        }
    }

    /// A run that was deleted gets no further status; its log ends all the same.
    async fn close_deleted(&self, directory: &RunDirectory) -> Result<(), StoreError> {
        for run in self.stores.events.open_logs().await? {
            match directory.is_gone(&run.namespace, &run.name, &run.uid).await {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    tracing::warn!(%error, uid = run.uid, "whether a run is gone cannot be told; its log stays open for now");
                    continue;
                }
            }
            let end = NewRecord::new("end", EventType::End, &json!({"phase": "Deleted", "reason": "Deleted"}));
            match self.stores.events.append(&run, 0, Origin::Gateway, vec![end]).await {
                Ok(_) | Err(StoreError::Closed) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn by_uid(runs: Vec<Arc<AgentRun>>) -> HashMap<String, Arc<AgentRun>> {
    runs.into_iter().map(|run| (runs::uid(&run).to_owned(), run)).collect()
}
