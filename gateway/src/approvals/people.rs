//! What people may do: see what waits, and decide. A decision is one compare-and-swap; whoever comes second is told what it
//! became and by whom.

use std::sync::Arc;

use agentrun_crds::AgentRun;
use agentrun_crds::agent_run_status::ApprovalState;
use agentrun_protocol::people::{ApprovalList, ApprovalView, Decision, DecisionRequest};
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use http::StatusCode;

use super::decide::{self, Saying, is_overdue};
use super::sandbox::{approval_id, knowing};
use super::sweep::{self, life};
use super::view::{record, view};
use crate::app::AppState;
use crate::auth::{Approve, Get, Person};
use crate::body::{self, invalid};
use crate::error::ApiError;
use crate::runs::{self, cancel};

/// A decision is small.
const MAX_DECISION_BYTES: usize = 8 * 1024;
const MAX_REASON_CHARS: usize = 256;
/// Of what is shown of each approval that waits, in a list.
const LISTED_BYTES: usize = 16 * 1024;
/// Of one by itself.
const SHOWN_BYTES: usize = 256 * 1024;
/// Longest name of a decider in status, in characters.
const MAX_NAME_CHARS: usize = 512;

/// GET: all in status, by number; what waits with what is shown of it.
pub(crate) async fn list(person: Person<Get>, State(state): State<AppState>) -> Result<Json<ApprovalList>, ApiError> {
    let seen = state.runs.freshest(runs::uid(&person.run)).ok_or_else(|| gone(ApiError::inactive_run_token()))?;
    let run = in_time(&state, seen).await?;
    let mut approvals = Vec::new();
    for approval in run.status.iter().flat_map(|status| &status.approvals) {
        approvals.push(match approval.state {
            ApprovalState::Pending => view(&state.stores, runs::uid(&run), approval, LISTED_BYTES).await?,
            _ => record(approval),
        });
    }
    approvals.sort_by_key(|approval| approval.id);
    Ok(Json(ApprovalList { approvals }))
}

/// GET: one, with what is shown of it.
pub(crate) async fn one(
    person: Person<Get>,
    State(state): State<AppState>,
    path: Result<Path<Named>, PathRejection>,
) -> Result<Json<ApprovalView>, ApiError> {
    let id = approval_id(path.map(|Path(named)| Path(named.approval)))?;
    let seen = knowing(&state, runs::uid(&person.run), id).await.map_err(gone)?;
    let run = in_time(&state, seen).await?;
    let approval = decide::find(run.status.as_ref().unwrap_or(&Default::default()), id)?.clone();
    Ok(Json(view(&state.stores, runs::uid(&run), &approval, SHOWN_BYTES).await?))
}

/// The one parameter of ours; the others name the run.
#[derive(serde::Deserialize)]
pub(crate) struct Named {
    approval: i64,
}

/// The run with what has lain past its time written down.
async fn in_time(state: &AppState, run: Arc<AgentRun>) -> Result<Arc<AgentRun>, ApiError> {
    let now = state.clock.unix_seconds();
    if run.status.as_ref().is_some_and(|status| is_overdue(status, now, life(&run))) {
        return sweep::expire(&state.status, &run, &state.clock).await.map_err(gone);
    }
    Ok(run)
}

/// POST: decide.
pub(crate) async fn decide(
    person: Person<Approve>,
    State(state): State<AppState>,
    path: Result<Path<Named>, PathRejection>,
    body: Body,
) -> Result<Json<ApprovalView>, ApiError> {
    let id = approval_id(path.map(|Path(named)| Path(named.approval)))?;
    let request: DecisionRequest = body::object(&body::read(body, MAX_DECISION_BYTES).await?)?;
    check(&request)?;
    let by = decider(&person.username)?;
    let saying = Saying {
        decision: request.decision,
        digest: request.digest.as_deref(),
        reason: request.reason.as_deref().filter(|r| !r.is_empty()),
        by: &by,
    };
    let decided = state.status.update(&person.run, |live, status| {
        not_their_own(live, &person.username)?;
        Ok(decide::decide(status, id, &saying, life(live), state.clock.unix_seconds()))
    });
    let (decided, run) = decided.await.map_err(gone)?;
    let approval = decided?;
    tracing::info!(run = runs::name(&run), namespace = runs::namespace(&run), id, state = ?approval.state, by, "an approval was decided");
    if request.decision == Decision::Cancel {
        cancel(&state.kube, &run).await?;
    }
    Ok(Json(record(&approval)))
}

fn check(request: &DecisionRequest) -> Result<(), ApiError> {
    let reason = request.reason.as_deref().unwrap_or_default();
    if reason.chars().nth(MAX_REASON_CHARS).is_some() {
        return Err(invalid("reason", format!("may have at most {MAX_REASON_CHARS} characters")));
    }
    if reason.chars().any(|c| (c.is_control() && c != '\n' && c != '\t') || agentrun_crds::paths::is_invisible(c)) {
        return Err(invalid("reason", "holds control or invisible characters"));
    }
    Ok(())
}

/// The name as it is recorded. One that would not be seen as it is decides nothing.
fn decider(username: &str) -> Result<String, ApiError> {
    let seen = !username.is_empty() && username.chars().all(|c| !c.is_control() && !agentrun_crds::paths::is_invisible(c));
    if seen && username.chars().nth(MAX_NAME_CHARS).is_none() {
        return Ok(username.to_owned());
    }
    Err(ApiError::new(
        StatusCode::FORBIDDEN,
        "unnameable",
        format!(
            "a decision is recorded with who made it, and this name is empty, longer than {MAX_NAME_CHARS} characters, or not printable"
        ),
    ))
}

/// Where the policy says that somebody else must decide.
fn not_their_own(run: &AgentRun, username: &str) -> Result<(), ApiError> {
    let resolved = run.status.as_ref().and_then(|status| status.resolved.as_ref());
    if resolved.and_then(|resolved| resolved.approvals.as_ref()).is_none_or(|approvals| approvals.submitter_may_approve) {
        return Ok(());
    }
    let submitters = [run.spec.submitted_by.as_deref(), run.spec.submitted_for.as_deref()];
    let message = match submitters {
        [None, _] => "the policy wants somebody else than the submitter to decide, and who submitted this run is not known",
        submitters if submitters.contains(&Some(username)) => {
            "the policy wants somebody else to decide on the actions of a run that you submitted; you may still cancel it"
        }
        _ => return Ok(()),
    };
    Err(ApiError::new(StatusCode::FORBIDDEN, "own_run", message))
}

/// To people, a run that is no longer there is not found.
fn gone(error: ApiError) -> ApiError {
    if error.code == "inactive_run_token" { ApiError::not_found("the AgentRun has just been deleted") } else { error }
}
