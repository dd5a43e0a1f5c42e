//! PUT of a run's source: streamed to the store and through the reader of archives at once. Nothing is kept of an archive with
//! another digest, or of one that is no plain tree.

use std::io::{self, Read};

use agentrun_crds::AgentRunStatus;
use agentrun_crds::agent_run_status::StoredSource;
use agentrun_protocol::archive::{self, ArchiveError, Summary};
use agentrun_protocol::people::{MAX_SOURCE_BYTES, SourceView};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use tokio::sync::mpsc;

use super::wanted;
use crate::app::AppState;
use crate::auth::{Patch, Person};
use crate::body::Pieces;
use crate::error::ApiError;
use crate::runs;
use crate::store::{Gate, Origin, RunRef};

/// Pieces of the body that may wait for the reader.
const IN_FLIGHT: usize = 4;

/// Upload the archive that the run names. The same again is harmless. 409 `already_completed` once the run has ended.
pub(crate) async fn put(
    person: Person<Patch>,
    State(state): State<AppState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<SourceView>, ApiError> {
    let digest = wanted(&person.run)?;
    ended(&person.run)?;
    let most = i64::try_from(MAX_SOURCE_BYTES).unwrap_or(i64::MAX);
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()).and_then(|text| text.parse::<i64>().ok());
    if announced.is_some_and(|length| length > most) {
        return Err(ApiError::too_large(format!("a source archive may have at most {most} bytes")).field("body"));
    }
    let run = RunRef::of(&person.run);
    let _place = state.stores.gates.enter(Gate::Source, &run.uid)?;
    let mut upload = state.stores.artifacts.begin(&run, Origin::Person, digest, most).await?;
    let (sender, receiver) = mpsc::channel(IN_FLIGHT);
    let reading = tokio::task::spawn_blocking(move || archive::read(Received { pieces: receiver, rest: Bytes::new() }, |_, _| Ok(())));
    let mut pieces = Pieces::of(body);
    while let Some(piece) = pieces.next().await? {
        upload.write(piece.clone()).await?;
        if sender.send(piece).await.is_err() {
            break; // the reader has seen enough to refuse it
        }
    }
    drop(sender);
    let summary = reading.await.map_err(ApiError::internal)?.map_err(refused)?;
    upload.finish().await?;
    let source = recorded(digest.to_string(), summary);
    let decide = |live: &agentrun_crds::AgentRun, status: &mut AgentRunStatus| {
        ended(live)?;
        status.source = Some(source.clone());
        Ok(())
    };
    state.status.update(&person.run, decide).await.map_err(|error| match error.code {
        "inactive_run_token" => ApiError::not_found("the run was deleted meanwhile"),
        _ => error,
    })?;
    tracing::info!(uid = run.uid, by = person.username, files = source.files, "a source archive was taken");
    let StoredSource { digest, bytes, files, git: _ } = source;
    Ok(Json(SourceView { digest, bytes, files }))
}

fn ended(run: &agentrun_crds::AgentRun) -> Result<(), ApiError> {
    if !runs::is_terminal(run) {
        return Ok(());
    }
    Err(ApiError::conflict("already_completed", "the run has ended and takes no source any more; submit another run"))
}

fn recorded(digest: String, summary: Summary) -> StoredSource {
    let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    StoredSource { digest, bytes: count(summary.bytes), files: count(summary.files as u64), git: None }
}

/// 422, with the entry at fault.
fn refused(error: ArchiveError) -> ApiError {
    let field = match &error {
        ArchiveError::Entry { entry, .. } => entry.clone(),
        ArchiveError::Whole(_) => "body".into(),
    };
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_archive", format!("{error}; nothing was kept")).field(field)
}

/// The body as the reader sees it, on a thread that may block.
struct Received {
    pieces: mpsc::Receiver<Bytes>,
    rest: Bytes,
}

impl Read for Received {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.rest = piece,
                None => return Ok(0),
            }
        }
        let piece = self.rest.split_to(self.rest.len().min(into.len()));
        into[..piece.len()].copy_from_slice(&piece);
        Ok(piece.len())
    }
}
