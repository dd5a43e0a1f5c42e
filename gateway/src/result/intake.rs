//! POST of a result: shape, blobs, verdict, patch, then one compare-and-swap on the run's status. Once an attempt; the same
//! result again gets the same answer, another one is refused.

use std::sync::Arc;
use std::time::Duration;

use agentrun_crds::agent_run_status::{ArtifactRef, ArtifactTotals, CheckResult, Resolved, RunResult, Trust};
use agentrun_crds::conditions::Reason;
use agentrun_crds::paths::RelativePath;
use agentrun_crds::{AgentRun, AgentRunStatus};
use agentrun_protocol::event::EventType;
use agentrun_protocol::result::ResultResponse;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use tokio::sync::Semaphore;

use super::base::Base;
use super::claims::{self, Claims};
use super::exhausted::NamespaceBudget;
use super::judge::{Verdict, judge};
use super::patch::{Mode, Patch, Side};
use super::{MAX_PATCH_BYTES, MAX_RESULT_BYTES};
use crate::app::AppState;
use crate::artifacts::PATCH_NAME;
use crate::auth::{Events, RunCaller, check_active};
use crate::body::{self, invalid};
use crate::error::ApiError;
use crate::events::result_event;
use crate::store::{Digest, Gate, Origin, RunRef, StoreError, put};

/// Changed paths that stand in status.
const PATHS_IN_STATUS: usize = 32;
/// In status, where a check's program could not be started. No program exits with it.
const NOT_STARTED: i64 = -1;
/// Patches rendered at once: each may take a patch's and a blob's memory.
static RENDERS: Semaphore = Semaphore::const_new(2);

pub(super) async fn result(caller: RunCaller<Events>, State(state): State<AppState>, body: Body) -> Result<Json<ResultResponse>, ApiError> {
    let run = RunRef::of(&caller.run);
    let _place = state.stores.gates.enter(Gate::Result, &run.uid)?;
    let attempt = i64::from(caller.claims.attempt);
    let claims = claims::parse(&body::read(body, MAX_RESULT_BYTES).await?, &run.uid, attempt)?;
    blobs_are_here(&state, &run, &claims).await?;
    let resolved = caller.run.status.as_ref().and_then(|status| status.resolved.clone());
    let resolved: Resolved = resolved.ok_or_else(|| ApiError::internal("a run with tokens has no status.resolved"))?;
    // The run rests: what it has spent is to stand in status before it ends.
    state.ledger.rest(caller.run.clone()).await;
    // A decision of a moment ago counts.
    let (_, decided) = state.runs.confirm_within(&run.uid, Duration::ZERO).await?;
    let base = Base::of(&state, &caller.run).await?;
    let of_namespace = NamespaceBudget::of(state.policies.get(&run.namespace).as_deref(), state.clock.now());
    let mut verdict = judge(&claims, &base, &decided, &resolved, &of_namespace);
    let mut patch = None;
    if verdict.reason != Reason::ResultInvalid && claims.manifest_complete && !claims.changes.is_empty() {
        match render(&state, &base, &caller.run, &claims).await? {
            Ok(bytes) => patch = Some(bytes),
            Err(unfit) => verdict = Verdict::invalid(unfit),
        }
    }
    drop(base);
    let result = recorded(&claims, &verdict, patch.as_deref(), attempt);
    let (result, written) = write(&state, &caller, &run, result, patch).await?;
    if let Some(digest) = result.patch.as_ref().and_then(|patch| Digest::parse(&patch.digest).ok()) {
        // What is in status stands; should this fail, the recorder names it.
        if let Err(error) = state.stores.artifacts.name(&run, Origin::Gateway, PATCH_NAME, digest).await {
            tracing::warn!(%error, uid = run.uid, "the patch could not be named yet");
        }
    }
    let (key, data) = result_event(&result);
    state.recorder.record(written, key, EventType::Result, data).await;
    Ok(Json(ResultResponse { verdict: result.verdict, message: result.message }))
}

/// Every blob that the result names has been uploaded by this run. One that has not may yet come: nothing is recorded.
async fn blobs_are_here(state: &AppState, run: &RunRef, claims: &Claims) -> Result<(), ApiError> {
    let after =
        claims.changes.iter().enumerate().filter_map(|(n, change)| Some((format!("changes[{n}].after.digest"), change.after?.digest)));
    let logs = claims.logs.iter().map(|(n, digest)| (format!("checks[{n}].log"), *digest));
    for (field, digest) in after.chain(logs) {
        if state.stores.artifacts.size(&run.uid, digest).await?.is_none() {
            return Err(invalid(field, "this run has not uploaded this blob; upload it, then send the result again"));
        }
    }
    Ok(())
}

/// The patch from our base to their blobs, one file at a time. Its paths are those of the repository where the source is a folder
/// of one.
async fn render(state: &AppState, base: &Base, run: &AgentRun, claims: &Claims) -> Result<Result<Vec<u8>, String>, ApiError> {
    let reference = RunRef::of(run);
    let folder = run.spec.source.git.as_ref().and_then(|git| git.sub_path.as_deref());
    let _permit = RENDERS.acquire().await.map_err(ApiError::internal)?;
    let mut patch = Patch::new(MAX_PATCH_BYTES);
    for change in &claims.changes {
        let before: Option<(Vec<u8>, Mode)> = base.content(change.path.as_str()).map(|(content, mode)| (content.to_vec(), mode));
        let after = match change.after {
            Some(after) => {
                let blob = state.stores.artifacts.open(&reference.uid, after.digest).await?.ok_or(StoreError::NoBlob(after.digest))?;
                Some((blob.read(after.digest).await?, after.mode))
            }
            None => None,
        };
        let path = match folder {
            None => change.path.clone(),
            Some(folder) => match RelativePath::parse(&format!("{folder}/{}", change.path)) {
                Ok(path) => path,
                Err(why) => return Ok(Err(format!("{folder}/{} is a path that {why}", change.path))),
            },
        };
        let task = tokio::task::spawn_blocking(move || {
            let before = before.as_ref().map(|(content, mode)| Side { content, mode: *mode });
            let after = after.as_ref().map(|(content, mode)| Side { content, mode: *mode });
            patch.add(&path, before, after).map(|()| patch)
        });
        match task.await.map_err(ApiError::internal)? {
            Ok(rendered) => patch = rendered,
            Err(too_large) => return Ok(Err(too_large.to_string())),
        }
    }
    Ok(Ok(patch.finish()))
}

/// What stands in status.
fn recorded(claims: &Claims, verdict: &Verdict, patch: Option<&[u8]>, attempt: i64) -> RunResult {
    let valid = verdict.reason != Reason::ResultInvalid;
    let checks = claims.checks.iter().filter(|_| valid).map(|check| CheckResult {
        name: check.name.clone(),
        exit_code: check.exit_code.unwrap_or(NOT_STARTED),
        trust: Trust::Sandbox,
    });
    RunResult {
        attempt,
        verdict: verdict.reason.as_str().into(),
        message: verdict.message.clone(),
        checks: checks.collect(),
        changed_files: count(claims.changes.len()),
        changed_paths: claims.changes.iter().take(PATHS_IN_STATUS).map(|change| change.path.as_str().into()).collect(),
        patch: patch.map(|patch| ArtifactRef { digest: Digest::of(patch).to_string(), bytes: count(patch.len()) }),
        steps: claims.steps,
    }
}

/// Store the patch, then decide on the live object. What stands at the end: this result, or the same one from before.
async fn write(
    state: &AppState,
    caller: &RunCaller<Events>,
    run: &RunRef,
    result: RunResult,
    patch: Option<Vec<u8>>,
) -> Result<(RunResult, Arc<AgentRun>), ApiError> {
    // Before the patch takes room: another result may stand already.
    let standing = caller.run.status.as_ref().and_then(|status| status.result.as_ref());
    let repeats = same_result(standing, &result)?.is_some();
    if let Some(patch) = patch.filter(|_| !repeats) {
        put(&*state.stores.artifacts, run, Origin::Gateway, patch).await?;
    }
    let named = state.stores.artifacts.list(&run.uid).await?;
    let others = named.iter().filter(|artifact| artifact.name != PATCH_NAME).map(|artifact| artifact.bytes);
    let bytes: Vec<i64> = others.chain(result.patch.as_ref().map(|patch| patch.bytes)).collect();
    let totals = ArtifactTotals { count: count(bytes.len()), bytes: bytes.iter().sum() };
    let decide = |live: &AgentRun, status: &mut AgentRunStatus| {
        if let Some(standing) = same_result(status.result.as_ref(), &result)? {
            return Ok(standing.clone());
        }
        check_active(live, &caller.claims).map_err(|_| ApiError::inactive_run_token())?;
        status.result = Some(result.clone());
        status.artifacts = Some(totals.clone());
        Ok(result.clone())
    };
    state.status.update(&caller.run, decide).await
}

/// The result that stands, if it is this one. The message does not count: it tells of what was spent, which may have moved
/// since. Another result of the same attempt is in the way.
fn same_result<'a>(standing: Option<&'a RunResult>, result: &RunResult) -> Result<Option<&'a RunResult>, ApiError> {
    match standing {
        Some(standing) if *standing == (RunResult { message: standing.message.clone(), ..result.clone() }) => Ok(Some(standing)),
        Some(standing) if standing.attempt >= result.attempt => Err(ApiError::conflict(
            "result_already_recorded",
            format!("attempt {} has a result already, with verdict {}; a result is given once", standing.attempt, standing.verdict),
        )),
        _ => Ok(None),
    }
}

fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
