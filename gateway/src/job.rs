//! The job: what the runner is told to do, from the spec and what the operator resolved.

use agentrun_crds::AgentRun;
use agentrun_protocol::job::{Job, JobApprovals, JobCheck, JobFile};
use agentrun_protocol::routes::JOB;
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};

use crate::app::AppState;
use crate::auth::{Events, RunCaller};
use crate::error::ApiError;
use crate::{runs, source};

/// GET the job with an events token.
pub fn routes() -> Router<AppState> {
    Router::new().route(JOB, get(job))
}

async fn job(caller: RunCaller<Events>, State(state): State<AppState>) -> Result<Json<Job>, ApiError> {
    job_of(&caller.run, state.clock.unix_seconds()).map(Json)
}

fn job_of(run: &AgentRun, now: i64) -> Result<Job, ApiError> {
    let unresolved = || ApiError::unavailable("not_resolved", "the run has not been accepted yet; try again");
    let status = run.status.as_ref().ok_or_else(unresolved)?;
    let resolved = status.resolved.as_ref().ok_or_else(unresolved)?;
    let exchange = status.exchange.as_ref().ok_or_else(ApiError::inactive_run_token)?;
    let files = run.spec.source.inline.iter().flat_map(|inline| &inline.files);
    Ok(Job {
        run_uid: runs::uid(run).into(),
        namespace: runs::namespace(run).into(),
        name: runs::name(run).into(),
        attempt: exchange.attempt,
        instruction: run.spec.instruction.clone(),
        files: files.map(|f| JobFile { path: f.path.clone(), content: f.content.clone(), executable: f.executable }).collect(),
        archive: source::archive(run).map(str::to_owned),
        tree: status.source.as_ref().and_then(|source| source.git.as_ref()).map(|git| git.staged_tree.clone()),
        approvals: resolved
            .approvals
            .as_ref()
            .map(|rules| JobApprovals { policy_rules: rules.policy_rules.clone(), run_rules: rules.run_rules.clone() }),
        allowed_paths: resolved.allowed_paths.clone(),
        checks: resolved.checks.iter().map(|check| JobCheck { name: check.name.clone(), argv: check.argv.clone() }).collect(),
        model: resolved.model.name.clone(),
        max_steps: resolved.max_steps,
        harness: resolved.harness.clone(),
        deadline: status.deadline(now).ok_or_else(unresolved)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn the_job_is_the_spec_and_what_was_resolved() {
        let run = fixtures::run();
        let job = job_of(&run, fixtures::NOW).unwrap();
        assert_eq!((job.run_uid.as_str(), job.name.as_str(), job.namespace.as_str()), (fixtures::RUN_UID, "fix-it", "team"));
        assert_eq!(job.files, [JobFile { path: "a.py".into(), content: "x = 1\n".into(), executable: true }]);
        assert_eq!((job.model.as_str(), job.max_steps, job.deadline), ("demo", 12, fixtures::NOW + 180));
        assert_eq!(job.checks, [JobCheck { name: "unit".into(), argv: vec!["python3".into(), "-m".into(), "pytest".into()] }]);
        let mut asking = run.clone();
        let rules = serde_json::json!({"policyRules": [{"decision": "Ask"}], "timeoutSeconds": 60, "maxPauseSeconds": 0, "submitterMayApprove": true});
        asking.status.as_mut().unwrap().resolved.as_mut().unwrap().approvals = Some(serde_json::from_value(rules).unwrap());
        assert_eq!(
            job_of(&asking, fixtures::NOW).unwrap().approvals.map(|rules| (rules.policy_rules.len(), rules.run_rules.len())),
            Some((1, 0))
        );
        let mut pending = run.clone();
        pending.status.as_mut().unwrap().resolved = None;
        assert_eq!(job_of(&pending, fixtures::NOW).unwrap_err().code, "not_resolved");
    }
}
