//! The files that a run started from: of the AgentRun itself, or of its archive. An archive is held in memory while a result is
//! judged against it, one at a time.

use std::collections::BTreeMap;
use std::ops::Range;

use agentrun_crds::AgentRun;
use agentrun_protocol::archive;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::claims::State;
use super::patch::Mode;
use crate::app::AppState;
use crate::error::ApiError;
use crate::source;
use crate::store::{Digest, RunRef};

/// Archives in memory at once.
static ARCHIVES: Semaphore = Semaphore::const_new(1);

/// Every file of the source.
pub(super) struct Base {
    bytes: Vec<u8>,
    files: BTreeMap<String, (State, Range<usize>)>,
    _turn: Option<SemaphorePermit<'static>>,
}

impl Base {
    /// Waits for its turn where the source is an archive.
    pub(super) async fn of(state: &AppState, run: &AgentRun) -> Result<Base, ApiError> {
        if !run.spec.source.comes_later() {
            return Ok(Base::inline(run));
        }
        let archive = source::archive(run).ok_or_else(source::not_uploaded)?;
        let turn = ARCHIVES.acquire().await.map_err(ApiError::internal)?;
        let digest = Digest::parse(archive).map_err(|error| ApiError::internal(format!("the source's digest {error}")))?;
        let blob = state.stores.artifacts.open(&RunRef::of(run).uid, digest).await?.ok_or_else(source::not_uploaded)?;
        let bytes = blob.read(digest).await?;
        let indexed = tokio::task::spawn_blocking(move || index(&bytes).map(|files| (bytes, files))).await.map_err(ApiError::internal)?;
        // It was read once before it was taken.
        let (bytes, files) = indexed.map_err(ApiError::internal)?;
        Ok(Base { bytes, files, _turn: Some(turn) })
    }

    /// What stands in the AgentRun.
    pub(super) fn inline(run: &AgentRun) -> Base {
        let mut base = Base { bytes: Vec::new(), files: BTreeMap::new(), _turn: None };
        for file in run.spec.source.inline.iter().flat_map(|inline| &inline.files) {
            let begin = base.bytes.len();
            base.bytes.extend_from_slice(file.content.as_bytes());
            let state = State { digest: Digest::of(file.content.as_bytes()), mode: mode(file.executable) };
            base.files.insert(file.path.clone(), (state, begin..base.bytes.len()));
        }
        base
    }

    pub(super) fn state(&self, path: &str) -> Option<State> {
        self.files.get(path).map(|(state, _)| *state)
    }

    /// Content and mode.
    pub(super) fn content(&self, path: &str) -> Option<(&[u8], Mode)> {
        let (state, range) = self.files.get(path)?;
        Some((self.bytes.get(range.clone())?, state.mode))
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }
}

fn index(bytes: &[u8]) -> Result<BTreeMap<String, (State, Range<usize>)>, String> {
    let mut files = BTreeMap::new();
    let mut outside = false;
    let read = archive::read(bytes, |file, _| {
        let begin = usize::try_from(file.at).unwrap_or(usize::MAX);
        let range = begin..begin.saturating_add(usize::try_from(file.bytes).unwrap_or(usize::MAX));
        match bytes.get(range.clone()) {
            Some(content) => {
                let state = State { digest: Digest::of(content), mode: mode(file.executable) };
                files.insert(file.path.to_string(), (state, range));
            }
            None => outside = true,
        }
        Ok(())
    });
    read.map_err(|error| error.to_string())?;
    if outside { Err("a stored archive is cut off".into()) } else { Ok(files) }
}

fn mode(executable: bool) -> Mode {
    if executable { Mode::Executable } else { Mode::Regular }
}
