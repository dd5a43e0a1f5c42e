//! What a runner may do: ask, wait for the decision, and consume it. What it says is judged again by the rules of the run, and
//! what is shown of it is made here.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use agentrun_crds::agent_run_status::{Approval, ApprovalState, ResolvedApprovals};
use agentrun_crds::approval_rules::{RuleDecision, judge};
use agentrun_crds::{AgentRun, AgentRunStatus};
use agentrun_protocol::approval::{ActionDocument, ApprovalAnswer, AskRequest, ConsumeRequest, MAX_ASK_BYTES, MAX_WAIT_SECONDS};
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use http::StatusCode;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use super::action::{self, Checked};
use super::decide::{self, Life, MAX_LISTED, Question, is_overdue, standing_grant};
use super::refusal::Refused;
use super::shown::summary;
use crate::app::AppState;
use crate::auth::{Approvals, RunCaller, check_active};
use crate::body::{self, invalid};
use crate::error::ApiError;
use crate::events::approval_events;
use crate::runs;
use crate::store::{Gate, Origin, RunRef, StoreError, put};

/// POST: record the question, or find the one that stands. Document and texts are stored before it can be seen.
pub(super) async fn ask(caller: RunCaller<Approvals>, State(state): State<AppState>, body: Body) -> Result<Json<ApprovalAnswer>, ApiError> {
    let run = RunRef::of(&caller.run);
    let _place = state.stores.gates.enter(Gate::Approve, &run.uid)?;
    let request: AskRequest = body::object(&body::read(body, MAX_ASK_BYTES).await?)?;
    let action = action::check(request.action)?;
    let rules = needs_a_person(&caller.run, &action)?;
    let document = document(&caller, &action)?;
    let question = Question {
        digest: document.digest(),
        kind: action.action().tool.clone(),
        summary: summary(action.action()),
        timeout_seconds: rules.timeout_seconds,
    };
    // Before anything takes room: there may be no place for it.
    let seen = state.runs.freshest(&run.uid).ok_or_else(ApiError::inactive_run_token)?;
    let status = seen.status.as_ref().ok_or_else(ApiError::inactive_run_token)?;
    decide::room(status, &question.digest)?;
    for (field, digest, bytes) in &action.uploaded {
        if state.stores.artifacts.size(&run.uid, *digest).await? != Some(*bytes) {
            return Err(invalid(
                field.clone(),
                format!("this run has not uploaded such a blob of {bytes} bytes; upload it, then ask again"),
            ));
        }
    }
    for (_, text) in &action.inline {
        put(&*state.stores.artifacts, &run, Origin::Gateway, text.clone().into_bytes()).await?;
    }
    put(&*state.stores.artifacts, &run, Origin::Gateway, document.bytes()).await?;
    let recorded = recorded(&state, &run, status).await?;
    let (asked, written) = state
        .status
        .update(&caller.run, |live, status| {
            check_active(live, &caller.claims).map_err(|_| ApiError::inactive_run_token())?;
            Ok(decide::ask(status, &question, &recorded, state.clock.unix_seconds()))
        })
        .await?;
    let id = asked?;
    let written = granted(&state, &caller, written, id, &question.digest).await?;
    answer(&state, &written, id)
}

/// Final approvals whose event is stored, once the list is so long that one may have to leave it.
async fn recorded(state: &AppState, run: &RunRef, status: &AgentRunStatus) -> Result<BTreeSet<i64>, ApiError> {
    let mut recorded = BTreeSet::new();
    // A list that grows meanwhile is read again with the next question.
    if status.approvals.len() + 1 < MAX_LISTED {
        return Ok(recorded);
    }
    let attempt = status.attempt.unwrap_or(0);
    for approval in &status.approvals {
        match state.stores.events.append(run, attempt, Origin::Gateway, approval_events(approval, false)).await {
            Ok(_) | Err(StoreError::KeyConflict { .. }) => drop(recorded.insert(approval.id)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(recorded)
}

/// A second write where the same action was allowed for the session: every approval is born pending.
async fn granted(
    state: &AppState,
    caller: &RunCaller<Approvals>,
    written: Arc<AgentRun>,
    id: i64,
    digest: &str,
) -> Result<Arc<AgentRun>, ApiError> {
    let waits = |status: &AgentRunStatus| decide::find(status, id).is_ok_and(|approval| approval.state == ApprovalState::Pending);
    if !written.status.as_ref().is_some_and(|status| waits(status) && standing_grant(status, digest).is_some()) {
        return Ok(written);
    }
    let decided = state.status.update(&written, |live, status| {
        check_active(live, &caller.claims).map_err(|_| ApiError::inactive_run_token())?;
        decide::grant(status, id, state.clock.unix_seconds());
        Ok(())
    });
    decided.await.map(|((), run)| run)
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wait {
    #[serde(default)]
    wait: u64,
}

/// GET: the record, as soon as it is decided or the wait is over.
pub(super) async fn wait(
    caller: RunCaller<Approvals>,
    State(state): State<AppState>,
    id: Result<Path<i64>, PathRejection>,
    query: Result<Query<Wait>, QueryRejection>,
) -> Result<Json<ApprovalAnswer>, ApiError> {
    let id = approval_id(id)?;
    let Query(Wait { wait }) = query.map_err(|_| ApiError::bad_request("invalid_query", "only wait=<seconds> is known").field("wait"))?;
    if wait > MAX_WAIT_SECONDS {
        return Err(invalid("wait", format!("is at most {MAX_WAIT_SECONDS} seconds")));
    }
    let uid = runs::uid(&caller.run).to_owned();
    let _place = state.stores.gates.enter(Gate::Await, &uid)?;
    let until = Instant::now() + Duration::from_secs(wait);
    // Before the first look, so that no change between is missed.
    let mut changes = state.runs.changes();
    loop {
        let run = knowing(&state, &uid, id).await?;
        if check_active(&run, &caller.claims).is_err_and(|inactive| inactive.is_final()) {
            return Err(ApiError::inactive_run_token());
        }
        let status = run.status.as_ref().ok_or_else(ApiError::inactive_run_token)?;
        let now = state.clock.unix_seconds();
        if is_overdue(status, now, Life::Going) {
            let expired = super::sweep::expire(&state.status, &run, &state.clock).await?;
            return answer(&state, &expired, id);
        }
        let approval = decide::find(status, id)?;
        if approval.state != ApprovalState::Pending || Instant::now() >= until {
            return answer(&state, &run, id);
        }
        let left = u64::try_from(approval.expires_at.0.as_second().saturating_sub(now)).unwrap_or(0);
        let wake = until.min(Instant::now() + Duration::from_secs(left.max(1)));
        // Somebody else's change does not wake us for long: only a look at what the watch has brought.
        tokio::select! {
            () = tokio::time::sleep_until(wake) => {}
            () = of_run(&mut changes, &uid) => {}
        }
    }
}

/// The run as last seen. Where that lacks the approval, which another gateway may have recorded a moment ago, the live object.
pub(super) async fn knowing(state: &AppState, uid: &str, id: i64) -> Result<Arc<AgentRun>, ApiError> {
    let seen = state.runs.freshest(uid).ok_or_else(ApiError::inactive_run_token)?;
    if seen.status.as_ref().is_some_and(|status| decide::find(status, id).is_ok()) {
        return Ok(seen);
    }
    state.runs.confirm_within(uid, Duration::ZERO).await.map(|(_, run)| run)
}

/// Until the watch has brought this run, or so many that it may have been among them.
async fn of_run(changes: &mut tokio::sync::broadcast::Receiver<Arc<AgentRun>>, uid: &str) {
    loop {
        match changes.recv().await {
            Ok(run) if runs::uid(&run) != uid => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return,
            // The directory outlives its readers.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// POST: use what was allowed, for the action as it will be performed now.
pub(super) async fn consume(
    caller: RunCaller<Approvals>,
    State(state): State<AppState>,
    id: Result<Path<i64>, PathRejection>,
    body: Body,
) -> Result<Json<ApprovalAnswer>, ApiError> {
    let id = approval_id(id)?;
    let _place = state.stores.gates.enter(Gate::Approve, runs::uid(&caller.run))?;
    let request: ConsumeRequest = body::object(&body::read(body, MAX_ASK_BYTES).await?)?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if !(1..=128).contains(&request.execution_id.len()) || !request.execution_id.bytes().all(plain) {
        return Err(invalid("executionId", "must be 1 to 128 characters of A-Z, a-z, 0-9, '.', '_', '-'"));
    }
    let action = action::check(request.action)?;
    let digest = document(&caller, &action)?.digest();
    let (consumed, written) = state
        .status
        .update(&caller.run, |live, status| {
            check_active(live, &caller.claims).map_err(|_| ApiError::inactive_run_token())?;
            Ok(decide::consume(status, id, &digest, &request.execution_id, state.clock.unix_seconds()))
        })
        .await?;
    consumed?;
    answer(&state, &written, id)
}

/// The run's rules once more: what may be done at once is not asked, and what may not be done is not either.
fn needs_a_person<'a>(run: &'a AgentRun, action: &Checked) -> Result<&'a ResolvedApprovals, ApiError> {
    let unneeded = || ApiError::conflict("no_approval_needed", "the rules of this run let this action be performed at once");
    let resolved = run.status.as_ref().and_then(|status| status.resolved.as_ref());
    let rules = resolved.and_then(|resolved| resolved.approvals.as_ref()).ok_or_else(unneeded)?;
    match judge(&rules.policy_rules, &rules.run_rules, &action.asked()) {
        RuleDecision::Ask => Ok(rules),
        RuleDecision::Allow => Err(unneeded()),
        RuleDecision::Deny => {
            Err(ApiError::new(StatusCode::FORBIDDEN, "action_denied", "the rules of this run deny this action; nobody is asked"))
        }
    }
}

/// What the decision is bound to: the action, the run, its attempt, and the policy that it was accepted under.
fn document(caller: &RunCaller<Approvals>, action: &Checked) -> Result<ActionDocument, ApiError> {
    let resolved = caller.run.status.as_ref().and_then(|status| status.resolved.as_ref()).ok_or_else(ApiError::inactive_run_token)?;
    Ok(ActionDocument::new(runs::uid(&caller.run), i64::from(caller.claims.attempt), &resolved.policy_sha256, action.action()))
}

pub(super) fn approval_id(id: Result<Path<i64>, PathRejection>) -> Result<i64, ApiError> {
    id.map(|Path(id)| id).map_err(|_| ApiError::not_found("an approval is known by its number"))
}

fn answer(state: &AppState, run: &AgentRun, id: i64) -> Result<Json<ApprovalAnswer>, ApiError> {
    let status = run.status.as_ref().ok_or_else(ApiError::inactive_run_token)?;
    let approval: &Approval = decide::find(status, id).map_err(|refused: Refused| ApiError::from(refused))?;
    Ok(Json(ApprovalAnswer {
        id,
        digest: approval.digest.clone(),
        state: approval.state,
        expires_at: approval.expires_at.0.as_second(),
        reason: approval.reason.clone(),
        deadline: status.deadline(state.clock.unix_seconds()).ok_or_else(ApiError::inactive_run_token)?,
    }))
}
