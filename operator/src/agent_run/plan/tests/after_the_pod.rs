//! Rows from the moment that the Pod is recorded.

use super::*;

fn asked(v: &mut Value, state: &str) {
    v["status"]["approvals"] = json!([{"id": 1, "digest": "00", "kind": "run_command", "summary": "make", "state": state,
        "requestedAt": time(15), "expiresAt": time(1815)}]);
}

/// Asked at second 15, under a policy that lets the wall time stand still so long.
fn paused(v: &mut Value, most: i64) {
    asked(v, "pending");
    v["status"]["awaitingSince"] = json!(time(15));
    v["status"]["resolved"]["approvals"] = json!({"timeoutSeconds": 1800, "maxPauseSeconds": most, "submitterMayApprove": true});
}

#[test]
fn watching_the_sandbox() {
    let unschedulable = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]});
    let deleted = |second: i64| move |v: &mut Value| v["metadata"]["deletionTimestamp"] = json!(time(second));
    let running = |change: fn(&mut Value)| {
        recorded(|v| {
            exchanged(v);
            change(v);
        })
    };
    let lost_result = running(|v| v["status"]["result"] = result("SandboxLost"));
    let executor_oom = json!({"phase": "Running", "initContainerStatuses": [{"name": "executor", "image": "i", "imageID": "", "ready": false,
        "restartCount": 1, "state": {"running": {}}, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]});
    let rows: Vec<Row<'_>> = vec![
        ("no node", recorded(|_| ()), pod(unschedulable.clone()), 5, "Starting/Starting"),
        ("no node in time", recorded(|_| ()), pod(unschedulable), 300, "Failed/Unschedulable"),
        ("image fails", recorded(|_| ()), pod(pulling()), 5, "Starting/Starting"),
        ("image fails long", recorded(|_| ()), pod(pulling()), 61, "Failed/ImagePullFailed"),
        ("no exchange in time", recorded(|_| ()), pod(up()), 300, "Failed/StartupDeadlineExceeded"),
        ("exchanged", running(|_| ()), pod(up()), 20, "DeleteTicket Running/Running"),
        ("wall time", running(|_| ()), pod(up()), 10 + 1800, "Failed/DeadlineExceeded"),
        ("asked", running(|v| asked(v, "pending")), pod(up()), 20, "DeleteTicket AwaitingApproval/AwaitingApproval"),
        ("decided", running(|v| asked(v, "allowed")), pod(up()), 20, "DeleteTicket Running/Running"),
        ("asked, the wall time runs on", running(|v| asked(v, "pending")), pod(up()), 10 + 1800, "Failed/DeadlineExceeded"),
        ("paused", running(|v| paused(v, 1000)), pod(up()), 10 + 1800, "DeleteTicket AwaitingApproval/AwaitingApproval"),
        ("paused long enough", running(|v| paused(v, 1000)), pod(up()), 10 + 1800 + 1000, "Failed/DeadlineExceeded"),
        ("confinement", recorded(|_| ()), pod(runner_ended(1, r#"{"reason":"ConfinementFailed"}"#)), 5, "Failed/ConfinementFailed"),
        ("runner died", running(|_| ()), pod(runner_ended(101, "")), 20, "Failed/AgentError"),
        ("runner done", running(|v| v["status"]["result"] = result("Succeeded")), pod(runner_ended(0, "")), 20, "Succeeded/Succeeded"),
        ("result, Pod gone", running(|v| v["status"]["result"] = result("ChecksFailed")), Seen::Absent, 20, "Failed/ChecksFailed"),
        ("result after the wall", running(|v| v["status"]["result"] = result("Succeeded")), pod(up()), 9999, "Succeeded/Succeeded"),
        ("unknown verdict", running(|v| v["status"]["result"] = result("Fine")), pod(up()), 20, "Failed/ResultInvalid"),
        ("executor lost, why?", lost_result.clone(), pod(up()), 20, "in 1"),
        ("executor lost by memory", lost_result.clone(), pod(executor_oom), 20, "Failed/OutOfMemory"),
        ("executor lost, nobody knows", lost_result.clone(), pod(runner_ended(0, "")), 20, "Failed/SandboxLost"),
        ("executor lost, no word in time", lost_result, pod(up()), 10 + 1800, "Failed/SandboxLost"),
        ("compromised", running(|v| v["status"]["exchange"]["compromised"] = json!(true)), pod(up()), 20, "Failed/Compromised"),
        (
            "compromised beats a result",
            running(|v| {
                v["status"]["exchange"]["compromised"] = json!(true);
                v["status"]["result"] = result("Succeeded");
            }),
            pod(up()),
            20,
            "Failed/Compromised",
        ),
        (
            "overrun beats a result",
            running(|v| {
                v["status"]["budget"]["overrun"] = json!({"outputTokens": 5});
                v["status"]["budget"]["gate"] = json!("Closed");
                v["status"]["result"] = result("Succeeded");
            }),
            pod(up()),
            20,
            "Failed/BudgetExhausted",
        ),
        ("somebody deletes the Pod", running(|_| ()), pod_with(up(), deleted(25)), 21, "in 19"),
        ("and its node is silent", running(|_| ()), pod_with(up(), deleted(25)), 40, "Failed/SandboxLost"),
        ("and the runner ended", running(|_| ()), pod_with(runner_ended(143, ""), deleted(25)), 21, "Failed/SandboxLost"),
        (
            "another attempt's result",
            running(|v| {
                v["status"]["result"] = json!({"attempt": 2, "verdict": "Succeeded", "message": "", "changedFiles": 0, "steps": 0})
            }),
            Seen::Absent,
            20,
            "in 1",
        ),
    ];
    for (row, run, pod, now, expected) in rows {
        let facts = Facts::Started { pod, fence: fence(), making: None };
        let planned = plan(&run, &facts, None, at(now));
        assert_eq!(line(&planned), expected, "{row}");
        if let Some(Write::Status(status)) = planned.writes.last() {
            let after = AgentRun { status: Some((**status).clone()), ..run };
            if stage(&after) == Stage::Ended {
                let budget = after.status.as_ref().and_then(|status| status.budget.as_ref()).unwrap();
                assert_eq!(budget.gate, Gate::Closed, "{row}");
            } else {
                let again = plan(&after, &facts, None, at(now));
                assert!(again.writes.is_empty(), "{row}: planning twice writes {again:?}");
            }
        }
    }
}

#[test]
fn cancelling() {
    let cancelled = |change: fn(&mut Value)| {
        recorded(|v| {
            exchanged(v);
            v["spec"]["cancel"] = json!(true);
            change(v);
        })
    };
    let closed = |v: &mut Value| v["status"]["budget"]["gate"] = json!("Closed");
    let deleted = |second: i64| move |v: &mut Value| v["metadata"]["deletionTimestamp"] = json!(time(second));
    let rows: Vec<Row<'_>> = vec![
        ("authority first", cancelled(|_| ()), pod(up()), 20, "Cancelling/Cancelling"),
        ("then the Pod", cancelled(closed), pod(up()), 20, "DeletePod"),
        ("wait for the kubelet", cancelled(closed), pod_with(up(), deleted(25)), 21, "in 19"),
        ("gone", cancelled(closed), Seen::Absent, 21, "Cancelled/Cancelled"),
        ("a silent node", cancelled(closed), pod_with(up(), deleted(25)), 40, "Cancelled/Cancelled"),
        ("a result came first", cancelled(|v| v["status"]["result"] = result("Succeeded")), pod(up()), 20, "Succeeded/Succeeded"),
        (
            "a result came too late",
            cancelled(|v| {
                v["status"]["budget"]["gate"] = json!("Closed");
                v["status"]["result"] = result("Succeeded");
            }),
            pod(up()),
            20,
            "DeletePod",
        ),
    ];
    for (row, run, pod, now, expected) in rows {
        assert_eq!(line(&plan(&run, &Facts::Started { pod, fence: fence(), making: None }, None, at(now))), expected, "{row}");
    }
}

#[test]
fn after_the_end() {
    let ended = |change: fn(&mut Value)| {
        recorded(|v| {
            exchanged(v);
            v["status"]["phase"] = json!("Failed");
            v["status"]["finishedAt"] = json!(time(100));
            change(v);
        })
    };
    let deleted = |second: i64| move |v: &mut Value| v["metadata"]["deletionTimestamp"] = json!(time(second));
    let forced = |v: &mut Value| {
        v["metadata"]["deletionTimestamp"] = json!(time(105));
        v["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    };
    let unheld = |v: &mut Value| v["metadata"]["finalizers"] = json!([]);
    let ttl = |v: &mut Value| {
        v["metadata"]["finalizers"] = json!([]);
        v["spec"]["ttlSecondsAfterFinished"] = json!(60);
    };
    let failed = json!([{"type": "CleanupFailed", "status": "True", "reason": "R", "message": "", "lastTransitionTime": time(100)}]);
    let gone = |known: bool| {
        let run = ended(|_| ());
        let status = Next::of(&run, at(20)).running().done();
        let run = AgentRun { status: Some(AgentRunStatus { phase: Some(Phase::Failed), ..status }), ..run };
        let status = Next::of(&run, at(120)).sandbox_gone(known).done();
        AgentRun { status: Some(status), ..run }
    };
    let (silent, known) = (gone(false), gone(true));
    let mut cleanup = ended(|_| ());
    cleanup.status.as_mut().unwrap().conditions = serde_json::from_value(failed).unwrap();
    let release = "KeepRecord DeletePolicy RemoveFinalizer";
    let rows: Vec<Row<'_>> = vec![
        ("the Pod first", ended(|_| ()), pod(up()), 101, "DeletePod"),
        ("wait for the kubelet", ended(|_| ()), pod_with(up(), deleted(105)), 101, "in 19"),
        ("a silent node", ended(|_| ()), pod_with(up(), deleted(105)), 120, "Failed/Starting ForceDeletePod"),
        ("silent since the cancellation", silent.clone(), pod_with(up(), deleted(105)), 121, "ForceDeletePod"),
        ("forced a moment ago", silent.clone(), pod_with(up(), forced), 121, "in 5"),
        ("held by somebody's finalizer", silent.clone(), pod_with(up(), forced), 150, release),
        ("gone by force", silent, Seen::Absent, 122, release),
        ("gone is said", ended(|_| ()), Seen::Absent, 110, "Failed/Starting"),
        ("policy last", known, Seen::Absent, 121, release),
        ("cleanup fails", cleanup.clone(), pod(up()), 150, "DeletePod"),
        ("cleanup failed too long", cleanup, pod(up()), 400, "RemoveFinalizer"),
        ("done", ended(unheld), Seen::Absent, 121, "never"),
        ("somebody else's Pod stays", ended(unheld), Seen::Foreign, 121, "never"),
        ("swept", ended(unheld), pod(up()), 121, "DeletePod"),
        ("kept a while", ended(ttl), Seen::Absent, 121, "in 39"),
        ("retention", ended(ttl), Seen::Absent, 160, "DeleteRun"),
    ];
    for (row, run, pod, now, expected) in rows {
        assert_eq!(line(&plan(&run, &Facts::Ended { pod }, None, at(now))), expected, "{row}");
    }
}

#[test]
fn deleted_by_somebody() {
    let deleted = |v: &mut Value| v["metadata"]["deletionTimestamp"] = json!(time(30));
    let working = recorded(|v| {
        exchanged(v);
        deleted(v);
    });
    let waiting = run(deleted);
    let refused = run(|v| {
        deleted(v);
        v["metadata"]["finalizers"] = json!(["other/finalizer"]);
    });
    let facts = |pod| Facts::Ended { pod };
    assert_eq!(stage(&working), Stage::Ended);
    assert_eq!(line(&plan(&working, &facts(pod(up())), None, at(31))), "Cancelled/Cancelled", "authority first");
    assert_eq!(line(&plan(&waiting, &facts(Seen::Absent), None, at(31))), "DeleteTicket DeletePolicy RemoveFinalizer");
    assert_eq!(line(&plan(&refused, &facts(Seen::Absent), None, at(31))), "never", "nothing of ours holds it");
}
