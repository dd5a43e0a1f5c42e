//! What outlives a run: the record that is written before we let go of it, and how a run ends that has one already. Pure.

use agentrun_crds::agent_run_record::{AgentRunRecord, AgentRunRecordSpec, spec_sha256};
use agentrun_crds::agent_run_status::EarlierRun;
use agentrun_crds::conditions::types;
use agentrun_crds::{AgentRun, names};
use kube::core::ObjectMeta;

use super::objects::Owner;
use super::status::{Ending, condition};

/// The record of a run that has worked and ended. One that never started leaves none: it may be tried again.
pub fn of(run: &AgentRun) -> Option<AgentRunRecord> {
    let status = run.status.as_ref()?;
    let phase = status.phase.filter(|phase| phase.is_terminal())?;
    status.started_at.as_ref()?;
    let owner = Owner::of(run);
    let metadata = ObjectMeta {
        name: Some(owner.name),
        namespace: Some(owner.namespace),
        labels: Some([(names::LABEL_RECORD_OF.to_owned(), owner.uid.clone())].into()),
        ..ObjectMeta::default()
    };
    let spec = AgentRunRecordSpec {
        run_uid: owner.uid,
        spec_sha256: spec_sha256(&run.spec),
        phase,
        reason: condition(status, types::COMPLETE)?.reason.clone(),
        finished_at: status.finished_at.clone()?,
        submitted_by: run.spec.submitted_by.clone(),
        spent: status.budget.as_ref().map(|budget| budget.spent),
        patch: status.result.as_ref().and_then(|result| result.patch.clone()),
    };
    Some(AgentRunRecord { metadata, spec })
}

/// How a run ends whose record says that it has run before; `None` if this is another one.
pub fn already_ran(run: &AgentRun, record: &AgentRunRecordSpec) -> Option<Ending> {
    let owner = Owner::of(run);
    if record.run_uid == owner.uid || record.spec_sha256 != spec_sha256(&run.spec) {
        return None;
    }
    let message = format!(
        "a run of this name and spec has run before: its UID was {}, and it ended as {} ({}) at {}; its events, patch and \
         artifacts are shown for this one's as long as retention keeps them; to run again change spec.rerunKey or delete the AgentRunRecord {}",
        record.run_uid,
        record.phase.as_str(),
        record.reason,
        record.finished_at.0,
        owner.name,
    );
    let earlier = EarlierRun { run_uid: record.run_uid.clone(), patch: record.patch.clone() };
    Some(Ending::already_ran(record.phase, earlier, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentrun_crds::agent_run_status::Phase;
    use agentrun_crds::conditions::Reason;
    use serde_json::{Value, json};

    fn run(change: impl FnOnce(&mut Value)) -> AgentRun {
        let mut value = json!({
            "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": "fix", "namespace": "team-a", "uid": "first"},
            "spec": {"instruction": "Fix it.", "model": "small", "source": {"inline": {"files": [{"path": "a", "content": ""}]}},
                "submittedBy": "anna"},
            "status": {"phase": "Failed", "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:01:00Z", "conditions": [
                {"type": "Complete", "status": "True", "reason": "ChecksFailed", "message": "", "lastTransitionTime": "2026-01-01T00:01:00Z"}]},
        });
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn only_what_has_worked_and_ended_leaves_a_record() {
        let record = of(&run(|_| ())).unwrap();
        assert_eq!((record.metadata.name.as_deref(), record.metadata.namespace.as_deref()), (Some("fix"), Some("team-a")));
        let AgentRunRecordSpec { run_uid, phase, reason, submitted_by, .. } = record.spec;
        assert_eq!((run_uid.as_str(), phase, reason.as_str()), ("first", Phase::Failed, "ChecksFailed"));
        assert_eq!(submitted_by.as_deref(), Some("anna"));
        assert_eq!(of(&run(|v| v["status"]["phase"] = json!("Running"))), None);
        assert_eq!(of(&run(|v| v["status"]["startedAt"] = Value::Null)), None, "refused before it started");
        assert_eq!(of(&run(|v| v["status"] = Value::Null)), None);
    }

    #[test]
    fn the_same_manifest_runs_once() {
        let record = of(&run(|_| ())).unwrap().spec;
        type Change = fn(&mut Value);
        let rows: [(&str, Change, bool); 8] = [
            ("created again", |_| (), true),
            ("by somebody else", |v| v["spec"]["submittedBy"] = json!("bert"), true),
            ("to be kept for another time", |v| v["spec"]["ttlSecondsAfterFinished"] = json!(60), true),
            ("asked to end", |v| v["spec"]["cancel"] = json!(true), true),
            ("to run again", |v| v["spec"]["rerunKey"] = json!("2"), false),
            ("with another instruction", |v| v["spec"]["instruction"] = json!("Fix more."), false),
            ("for somebody", |v| v["spec"]["submittedFor"] = json!("anna"), false),
            ("the recorded run itself", |v| v["metadata"]["uid"] = json!("first"), false),
        ];
        for (row, change, expected) in rows {
            let again = run(|v| {
                v["metadata"]["uid"] = json!("second");
                v["status"] = Value::Null;
                change(v);
            });
            let ending = already_ran(&again, &record);
            assert_eq!(ending.is_some(), expected, "{row}");
            if let Some(ending) = ending {
                assert_eq!((ending.reason, ending.phase()), (Reason::AlreadyRan, Phase::Failed), "{row}");
                for part in ["first", "ChecksFailed", "rerunKey", "AgentRunRecord fix"] {
                    assert!(ending.message.contains(part), "{part}: {}", ending.message);
                }
            }
        }
    }
}
