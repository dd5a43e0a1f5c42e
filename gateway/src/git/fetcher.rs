//! Follows the runs and fetches the source of each that waits for a commit; of several gateways the leader does. What comes of it is
//! one write to the run's status: the stored source, or why there is none. Whoever writes first counts, so two leaders at once cost a
//! fetch. One that a crash or the loss of the lease ended has written nothing, and begins again.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agentrun_crds::agent_run_status::{SourceFailure, StoredSource};
use agentrun_crds::{AgentRun, AgentRunStatus};
use agentrun_protocol::people::MAX_SOURCE_BYTES;
use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::sync::broadcast::error::RecvError;

use super::export::Exported;
use super::failure::Failure;
use super::fetch::{Request, fetch};
use crate::app::AppState;
use crate::error::ApiError;
use crate::leader::Leader;
use crate::places::Places;
use crate::runs::{self, RunDirectory, StatusWriter};
use crate::store::{Origin, RunRef, StoreError, Stores};

/// Fetches at once, of one namespace and in all.
const IN_NAMESPACE: usize = 2;
const IN_ALL: usize = 16;
/// Pauses before the same is tried again.
const PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(10)];
/// How long the watch may lag behind a write.
const SEEN_WITHIN: Duration = Duration::from_secs(10);
const PIECE: usize = 256 * 1024;
const MAX_MESSAGE: usize = 1_024;

/// Cheap to clone.
#[derive(Clone)]
pub struct Fetcher {
    client: kube::Client,
    directory: RunDirectory,
    status: StatusWriter,
    stores: Stores,
    leader: Leader,
    /// For temporary files without names.
    folder: PathBuf,
    /// By namespace.
    places: Places,
    /// UIDs of the runs that are worked on.
    active: Arc<Mutex<HashSet<String>>>,
}

impl Fetcher {
    pub fn new(state: &AppState, leader: Leader, folder: PathBuf) -> Self {
        Fetcher {
            client: state.kube.clone(),
            directory: state.runs.clone(),
            status: state.status.clone(),
            stores: state.stores.clone(),
            leader,
            folder,
            places: Places::new(IN_NAMESPACE, IN_ALL),
            active: Arc::default(),
        }
    }

    /// Follow the directory for ever.
    pub async fn run(self) {
        self.directory.wait_synced().await;
        let mut leader = self.leader.clone();
        while leader.gained().await {
            tokio::select! {
                () = self.lead() => return,
                () = leader.lost() => {}
            }
        }
    }

    async fn lead(&self) {
        let mut changes = self.directory.changes();
        let mut pending = self.directory.snapshot();
        loop {
            for run in pending.drain(..).filter(|run| waits(run)) {
                self.begin(run);
            }
            match changes.recv().await {
                Ok(run) => pending.push(run),
                Err(RecvError::Lagged(_)) => pending = self.directory.snapshot(),
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Whether there is something to do that nobody does yet.
    pub(super) fn begin(&self, run: Arc<AgentRun>) -> bool {
        let uid = runs::uid(&run).to_owned();
        // What is told may be older than what is known.
        let run = self.directory.get(&uid).unwrap_or(run);
        if !waits(&run) {
            return false;
        }
        if !self.active.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.clone()) {
            return false;
        }
        let fetcher = self.clone();
        let mut leader = self.leader.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = fetcher.work(&run) => fetcher.seen(&uid).await,
                () = fetcher.unwanted(&uid) => {}
                () = leader.lost() => {}
            }
            fetcher.active.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
        });
        true
    }

    /// Until the watch has brought what was written, or else it would be fetched again.
    async fn seen(&self, uid: &str) {
        let mut changes = self.directory.changes();
        let seen = async {
            while self.directory.get(uid).is_some_and(|run| waits(&run)) {
                if let Err(RecvError::Closed) = changes.recv().await {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(SEEN_WITHIN, seen).await;
    }

    /// Until the run has ended, is to end, or is gone.
    async fn unwanted(&self, uid: &str) {
        let mut changes = self.directory.changes();
        let wanted = || self.directory.get(uid).is_some_and(|run| !run.spec.cancel && !runs::is_terminal(&run));
        while wanted() {
            if let Err(RecvError::Closed) = changes.recv().await {
                return;
            }
        }
    }

    async fn work(&self, run: &AgentRun) {
        let Some(request) = request(run) else { return };
        let _place = self.places.enter(runs::namespace(run)).await;
        let mut pauses = PAUSES.iter();
        let failure = loop {
            let failure = match self.once(run, &request).await {
                Ok(()) => return,
                Err(failure) => failure,
            };
            match pauses.next().filter(|_| failure.passing) {
                Some(pause) => tokio::time::sleep(*pause).await,
                None => break failure,
            }
        };
        let message: String = format!("{} at {}: {}", request.source.url, request.source.reference, failure.message);
        let message: String = message.chars().take(MAX_MESSAGE).collect();
        tracing::info!(uid = runs::uid(run), message, "a git source could not be fetched");
        self.write(run, |status| status.source_failure = Some(SourceFailure { message: message.clone() })).await;
    }

    async fn once(&self, run: &AgentRun, request: &Request) -> Result<(), Failure> {
        let mut exported = fetch(&self.client, &self.folder, request).await?;
        self.store(run, &mut exported).await?;
        let Exported { digest, summary, git, .. } = exported;
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let source = StoredSource {
            digest: digest.to_string(),
            bytes: count(summary.bytes),
            files: count(summary.files as u64),
            git: Some(git.clone()),
        };
        tracing::info!(uid = runs::uid(run), commit = git.commit, files = source.files, "a git source was fetched");
        self.write(run, |status| status.source = Some(source.clone())).await;
        Ok(())
    }

    async fn store(&self, run: &AgentRun, exported: &mut Exported) -> Result<(), Failure> {
        let most = i64::try_from(MAX_SOURCE_BYTES).unwrap_or(i64::MAX);
        let mut upload = self.stores.artifacts.begin(&RunRef::of(run), Origin::Person, exported.digest, most).await.map_err(unstored)?;
        let archive = exported.archive.try_clone().map_err(Failure::internal)?;
        let mut archive = tokio::fs::File::from_std(archive);
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            (&mut archive).take(PIECE as u64).read_to_end(&mut piece).await.map_err(Failure::internal)?;
            if piece.is_empty() {
                break;
            }
            upload.write(Bytes::from(piece)).await.map_err(unstored)?;
        }
        upload.finish().await.map_err(unstored)?;
        Ok(())
    }

    /// Once; whoever was first counts.
    async fn write(&self, run: &AgentRun, set: impl Fn(&mut AgentRunStatus)) {
        let decide = |live: &AgentRun, status: &mut AgentRunStatus| {
            if waits(live) {
                set(status);
            }
            Ok(())
        };
        let written: Result<_, ApiError> = self.status.update(run, decide).await;
        if let Err(error) = written {
            // The watch brings the run again, or the operator's deadline ends it.
            tracing::warn!(%error, uid = runs::uid(run), "what came of a git source could not be written");
        }
    }
}

/// Accepted, and neither fetched nor failed nor ended.
fn waits(run: &AgentRun) -> bool {
    let Some(status) = &run.status else { return false };
    let undecided = status.source.is_none() && status.source_failure.is_none();
    undecided && request(run).is_some() && !run.spec.cancel && !runs::is_terminal(run) && run.metadata.deletion_timestamp.is_none()
}

fn request(run: &AgentRun) -> Option<Request> {
    let how = run.status.as_ref()?.resolved.as_ref()?.git.clone()?;
    Some(Request { namespace: runs::namespace(run).to_owned(), source: run.spec.source.git.clone()?, how })
}

fn unstored(error: StoreError) -> Failure {
    match error {
        StoreError::Quota { what, most } => Failure::lasting(format!("there is no room for the source: {what} would be over {most}")),
        other => Failure::internal(other),
    }
}
