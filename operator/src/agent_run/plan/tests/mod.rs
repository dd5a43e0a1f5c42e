//! Rows: what stands, what was observed and the time, against writes, phase and reason.

use agentrun_crds::agent_run_status::{AgentRunStatus, Phase};
use agentrun_crds::budget::Gate;
use agentrun_crds::conditions::types;
use serde_json::{Value, json};

use super::super::objects::network_policy;
use super::super::status::{Next, condition};
use super::*;

mod after_the_pod;
mod fenced;

/// Row, run, Pod, second, expected line.
type Row<'a> = (&'a str, AgentRun, Seen<Box<Pod>>, i64, &'a str);
/// Row, run, Pod, what stands around it, refusal, second, expected line.
type MakingRow<'a> = (&'a str, AgentRun, Seen<Box<Pod>>, Fence, Option<&'a str>, i64, &'a str);

const UID: &str = "11111111-2222-3333-4444-555555555555";

fn at(second: i64) -> Timestamp {
    "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + jiff::SignedDuration::from_secs(second)
}

fn time(second: i64) -> String {
    at(second).to_string()
}

fn run(change: impl FnOnce(&mut Value)) -> AgentRun {
    let mut value = json!({
        "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun",
        "metadata": {"name": "fix", "namespace": "team-a", "uid": UID, "generation": 1, "resourceVersion": "1",
            "creationTimestamp": time(0), "finalizers": [names::FINALIZER]},
        "spec": {"instruction": "Fix it.", "model": "small", "agent": {"image": "tools:1"},
            "source": {"inline": {"files": [{"path": "a.py", "content": "x"}]}}},
    });
    change(&mut value);
    serde_json::from_value(value).unwrap()
}

fn policy() -> AgentPolicySpec {
    serde_json::from_value(json!({"models": [{"name": "small", "provider": "p", "model": "m"}], "images": ["tools:*"]})).unwrap()
}

fn gateway() -> Gateway {
    Gateway {
        namespace: "agentrun-system".into(),
        service: "agentrun-gateway".into(),
        address: "10.0.0.1".into(),
        selector: [("app".to_owned(), "gateway".to_owned())].into(),
    }
}

fn facts() -> Waiting {
    let provider = json!({
        "dialect": "OpenAIChat", "url": "https://api.test/", "secretRef": {"name": "s", "key": "k"},
        "allowedNamespaces": {"matchLabels": {}}, "models": [{"name": "m"}],
    });
    Waiting {
        policy: Some(policy()),
        policy_status: Default::default(),
        providers: [("p".to_owned(), serde_json::from_value(provider).unwrap())].into(),
        template: None,
        record: None,
        namespace: Default::default(),
        platform: Some(Platform { gateway: gateway(), ca: "PEM".into() }),
        peers: Some(Vec::new()),
        ticket: Ticket::of([7; 32]),
    }
}

/// A run as it stands once it was activated at second 0, with changes to its status.
fn started(change: impl FnOnce(&mut Value)) -> AgentRun {
    let run = run(|_| ());
    let plan = plan(&run, &Facts::Waiting(Box::new(facts())), None, at(0));
    let Some(Write::Status(status)) = plan.writes.last() else { panic!("not activated: {plan:?}") };
    let mut value = serde_json::to_value(AgentRun { status: Some((**status).clone()), ..run }).unwrap();
    change(&mut value);
    serde_json::from_value(value).unwrap()
}

fn recorded(change: impl FnOnce(&mut Value)) -> AgentRun {
    started(|v| {
        v["status"]["podRef"] = json!({"name": names::child_name(UID, 1), "uid": "pod-1"});
        change(v);
    })
}

fn exchanged(v: &mut Value) {
    let at = at(10).as_second();
    v["status"]["exchange"] = json!({"attempt": 1, "publicKey": "k", "nonce": "n", "at": at});
}

fn result(verdict: &str) -> Value {
    json!({"attempt": 1, "verdict": verdict, "message": "so it is", "changedFiles": 1, "steps": 3})
}

fn pod(status: Value) -> Seen<Box<Pod>> {
    pod_with(status, |_| ())
}

fn pod_with(status: Value, change: impl FnOnce(&mut Value)) -> Seen<Box<Pod>> {
    let owner = Owner::of(&run(|_| ()));
    let mut value = json!({
        "metadata": {"name": names::child_name(UID, 1), "namespace": "team-a", "uid": "pod-1", "creationTimestamp": time(1),
            "ownerReferences": [{"apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "name": "fix", "uid": UID, "controller": true}]},
        "status": status,
    });
    change(&mut value);
    seen(&owner, Some(serde_json::from_value(value).unwrap()))
}

fn up() -> Value {
    json!({"phase": "Running", "containerStatuses": [
        {"name": "runner", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}}]})
}

fn runner_ended(code: i64, message: &str) -> Value {
    json!({"phase": "Failed", "containerStatuses": [{"name": "runner", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": code, "message": message}}}]})
}

fn pulling() -> Value {
    json!({"phase": "Pending", "initContainerStatuses": [{"name": "executor", "image": "tools:1", "imageID": "", "ready": false,
        "restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff"}}}]})
}

fn making() -> Making {
    Making {
        image: RunnerImage { name: "runner:1".into(), pull_policy: "IfNotPresent".into() },
        probed: Probed { api_server: "10.96.0.1:443".parse().unwrap(), name_server: None, internet: None },
        account: true,
    }
}

/// Both policies of ours, and nobody else's.
fn fence() -> Fence {
    let policies = vec![network_policy::deny_all("team-a"), network_policy::to_gateway(&owner(), 1, &gateway())];
    Fence { gateway: Some(gateway()), policies }
}

/// The same and one more.
fn fence_and(name: &str, spec: Value) -> Fence {
    let mut fence = fence();
    fence.policies.push(serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap());
    fence
}

fn open() -> Value {
    json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]})
}

fn accepting(v: &mut Value) {
    v["status"]["resolved"]["networkEnforcement"] = json!("NotRequired");
}

fn owner() -> Owner {
    Owner::of(&run(|_| ()))
}

/// A plan in one line: the writes' names, a status as `phase/reason`, and when to look again.
fn line(plan: &Plan) -> String {
    let write = |write: &Write| match write {
        Write::Status(status) => summary(status),
        Write::DeletePod { force: true, .. } => "ForceDeletePod".into(),
        other => format!("{other:?}").split(['(', ' ']).next().unwrap_or_default().to_owned(),
    };
    let writes: Vec<String> = plan.writes.iter().map(write).collect();
    if !writes.is_empty() {
        return writes.join(" ");
    }
    match plan.again {
        Again::In(pause) => format!("in {}", pause.as_secs()),
        Again::Slowly => "slowly".into(),
        Again::Never => "never".into(),
    }
}

fn summary(status: &AgentRunStatus) -> String {
    let reason = condition(status, types::COMPLETE).map(|complete| complete.reason.as_str()).unwrap_or("-");
    format!("{}/{reason}", status.phase.map(Phase::as_str).unwrap_or("-"))
}

#[test]
fn before_the_start() {
    let waiting = |change: fn(&mut Waiting)| {
        let mut facts = facts();
        change(&mut facts);
        facts
    };
    let peer = |state: &str, n: usize| Peer {
        uid: format!("{state}-{n}"),
        active: state == "active",
        queued: state == "queued",
        created: Some(at(-9)),
        ..Peer::default()
    };
    let full = Waiting { peers: Some((0..4).map(|n| peer("active", n)).collect()), ..facts() };
    let crowded =
        Waiting { peers: Some((0..4).map(|n| peer("active", n)).chain((0..200).map(|n| peer("queued", n))).collect()), ..facts() };
    let said = |reason: &str, since: i64| {
        json!({"phase": "Pending", "conditions": [{"type": "Accepted", "status": "Unknown", "reason": reason, "message": "",
            "lastTransitionTime": time(since)}]})
    };
    let no_policy = waiting(|f| f.policy = None);
    let spent = waiting(|f| {
        f.policy.as_mut().unwrap().budgets = serde_json::from_value(json!([{"period": "Day", "limit": {"requests": 5}}])).unwrap();
        let period = json!({"period": "Day", "startsAt": time(0), "endsAt": time(60), "limit": {"requests": 5}, "warned": 100});
        f.policy_status = serde_json::from_value(json!({"budgets": [period]})).unwrap();
    });
    let lowered = waiting(|f| {
        f.policy.as_mut().unwrap().budgets = serde_json::from_value(json!([{"period": "Day", "limit": {"requests": 2}}])).unwrap();
        let period = json!({"period": "Day", "startsAt": time(0), "endsAt": time(60), "limit": {"requests": 5}, "spent": {"requests": 3}});
        f.policy_status = serde_json::from_value(json!({"budgets": [period]})).unwrap();
    });
    let no_provider = waiting(|f| f.providers.clear());
    let rows: Vec<(&str, AgentRun, Waiting, i64, &str)> = vec![
        ("accepted and started", run(|_| ()), facts(), 1, "CreateTicket Starting/Starting"),
        (
            "the finalizer first",
            run(|v| v["metadata"]["finalizers"] = json!([])),
            facts(),
            1,
            "AddFinalizer CreateTicket Starting/Starting",
        ),
        ("bad spec", run(|v| v["spec"]["instruction"] = json!("")), facts(), 1, "Failed/InvalidSpec"),
        ("bad spec without a policy", run(|v| v["spec"]["instruction"] = json!("")), no_policy.clone(), 1, "Failed/InvalidSpec"),
        ("not offered", run(|v| v["spec"]["model"] = json!("huge")), facts(), 1, "Failed/PolicyDenied"),
        ("no policy yet", run(|_| ()), no_policy.clone(), 1, "Pending/Pending"),
        ("no policy after the grace", run(|v| v["status"] = said("WaitingForPolicy", 1)), no_policy.clone(), 11, "Failed/PolicyMissing"),
        ("the policy came", run(|v| v["status"] = said("WaitingForPolicy", 1)), facts(), 9, "CreateTicket Starting/Starting"),
        ("no provider yet", run(|_| ()), no_provider.clone(), 1, "Pending/Pending"),
        ("no provider after the grace", run(|v| v["status"] = said("WaitingForProvider", 1)), no_provider, 12, "Failed/PolicyDenied"),
        ("an old run, seen for the first time", run(|_| ()), no_policy.clone(), 9999, "Pending/Pending"),
        ("the namespace's budget is spent", run(|_| ()), spent.clone(), 1, "Queued/Queued"),
        ("the namespace's limit is lowered below what is spent", run(|_| ()), lowered, 1, "Queued/Queued"),
        ("the next period begins", run(|v| v["status"] = json!({"phase": "Queued"})), spent, 60, "CreateTicket Starting/Starting"),
        ("no gateway yet", run(|_| ()), waiting(|f| f.platform = None), 1, "Queued/Queued"),
        ("the cap", run(|_| ()), full.clone(), 1, "Queued/Queued"),
        ("too many wait", run(|_| ()), crowded, 1, "Failed/QuotaExceeded"),
        ("cancelled", run(|v| v["spec"]["cancel"] = json!(true)), full, 1, "Cancelled/Cancelled"),
    ];
    for (row, run, facts, now, expected) in rows {
        let planned = plan(&run, &Facts::Waiting(Box::new(facts.clone())), None, at(now));
        assert_eq!(line(&planned), expected, "{row}");
        // Planning again on what was written writes nothing, later neither.
        if let [Write::Status(status)] = planned.writes.as_slice() {
            let after = AgentRun { status: Some((**status).clone()), ..run };
            if stage(&after) == Stage::Waiting {
                let again = plan(&after, &Facts::Waiting(Box::new(facts)), None, at(now + 1));
                assert!(again.writes.is_empty(), "{row}: {again:?}");
            }
        }
    }
    let waiting = plan(&run(|_| ()), &Facts::Waiting(Box::new(no_policy)), None, at(1));
    assert_eq!(waiting.again, Again::In(Duration::from_secs(10)), "the grace has an end");
}

#[test]
fn what_has_run_before_does_not_start() {
    let mut again = run(|_| ());
    again.metadata.uid = Some("another".into());
    let ended = Next::of(&started(|_| ()), at(60))
        .ended(&super::super::status::Ending::new(agentrun_crds::conditions::Reason::Succeeded, ""))
        .done();
    let record = super::super::record::of(&AgentRun { status: Some(ended), ..run(|_| ()) }).unwrap().spec;
    let facts = |change: fn(&mut AgentRunRecordSpec)| {
        let mut record = record.clone();
        change(&mut record);
        Facts::Waiting(Box::new(Waiting { record: Some(record), ..facts() }))
    };
    assert_eq!(line(&plan(&again, &facts(|_| ()), None, at(90))), "Succeeded/AlreadyRan");
    assert_eq!(line(&plan(&again, &facts(|r| r.phase = Phase::Cancelled), None, at(90))), "Cancelled/AlreadyRan");
    assert_eq!(line(&plan(&again, &facts(|r| r.spec_sha256 = "00".into()), None, at(90))), "CreateTicket Starting/Starting");
    let cancelled = AgentRun { spec: agentrun_crds::AgentRunSpec { cancel: true, ..again.spec.clone() }, ..again };
    assert_eq!(line(&plan(&cancelled, &facts(|_| ()), None, at(90))), "Cancelled/Cancelled");
}

#[test]
fn a_frozen_run_is_not_judged_again() {
    let resolved = started(|_| ()).status.unwrap().resolved.unwrap();
    let queued = run(|v| {
        v["status"] = json!({"phase": "Queued", "resolved": serde_json::to_value(&resolved).unwrap()});
        v["spec"]["model"] = json!("no-longer-offered");
    });
    let planned = plan(&queued, &Facts::Waiting(Box::new(facts())), None, at(50));
    assert_eq!(line(&planned), "CreateTicket Starting/Starting");
    let Some(Write::Status(status)) = planned.writes.last() else { panic!() };
    assert_eq!(status.resolved.as_ref(), Some(&resolved));
    let facts = Waiting { policy: None, ..facts() };
    assert_eq!(line(&plan(&queued, &Facts::Waiting(Box::new(facts)), None, at(50))), "Queued/Queued", "nothing starts without a policy");
}

#[test]
fn one_write_opens_the_budget() {
    let status = started(|v| v["spec"]["limits"] = json!({})).status.unwrap();
    let budget = status.budget.unwrap();
    assert_eq!((budget.gate, budget.limit.requests), (Gate::Open, 100));
    assert_eq!((status.attempt, status.phase, status.started_at.unwrap().0), (Some(1), Some(Phase::Starting), at(0)));
    assert_eq!(status.ticket_sha256, Some(Ticket::of([7; 32]).sha256()));
    assert_eq!(status.requests_text.as_deref(), Some("0/100"));
    assert_eq!(status.pod_ref, None);
}

#[test]
fn making_the_sandbox() {
    let with = |change: fn(&mut Fence)| {
        let mut fence = fence();
        change(&mut fence);
        fence
    };
    let weak = with(|f| f.policies[0].spec.as_mut().unwrap().egress = Some(vec![Default::default()]));
    let nothing = || with(|f| f.policies.clear());
    let somebodys = with(|f| f.policies[1].metadata.owner_references = None);
    let quota = Some("pods \"x\" is forbidden: exceeded quota: pods");
    let unknown = Some("ValidatingAdmissionPolicy 'agentrun-sandbox-policy' denied request: failed to configure binding: no params found");
    let rows: Vec<MakingRow<'_>> = vec![
        ("walls first", started(|_| ()), Seen::Absent, nothing(), None, 1, "CreatePolicy CreatePolicy"),
        ("then the Pod", started(|_| ()), Seen::Absent, fence(), None, 1, "CreatePod"),
        ("a weakened wall", started(|_| ()), Seen::Absent, weak, None, 1, "RestorePolicy"),
        ("somebody's policy", started(|_| ()), Seen::Absent, somebodys, None, 1, "Failed/PodRejected"),
        ("a policy that opens it", started(|_| ()), Seen::Absent, fence_and("dns", open()), None, 1, "Failed/NetworkNotEnforced"),
        ("one that is accepted", started(accepting), Seen::Absent, fence_and("dns", open()), None, 1, "CreatePod"),
        ("somebody's Pod", started(|_| ()), Seen::Foreign, fence(), None, 1, "Failed/PodRejected"),
        ("the gateway's Service went", started(|_| ()), Seen::Absent, with(|f| f.gateway = None), None, 1, "in 5"),
        ("the Pod is there", started(|_| ()), pod(json!({})), fence(), None, 1, "Starting/Starting"),
        ("refused for good", started(|_| ()), Seen::Absent, fence(), Some("violates PodSecurity"), 1, "Failed/PodRejected"),
        ("a quota may free itself", started(|_| ()), Seen::Absent, fence(), quota, 1, "Starting/Starting"),
        ("an API server may learn", started(|_| ()), Seen::Absent, fence(), unknown, 1, "Starting/Starting"),
        ("but not for ever", started(|_| ()), Seen::Absent, fence(), quota, 300, "Failed/PodRejected"),
        ("somebody took our hold", started(|v| v["metadata"]["finalizers"] = json!([])), pod(json!({})), fence(), None, 1, "AddFinalizer"),
        ("too late", started(|_| ()), Seen::Absent, fence(), None, 300, "Failed/StartupDeadlineExceeded"),
        ("recorded and gone", recorded(|_| ()), Seen::Absent, fence(), None, 1, "Failed/SandboxLost"),
        ("recorded, and another stands there", recorded(|_| ()), Seen::Foreign, fence(), None, 1, "Failed/SandboxLost"),
        (
            "recorded, and another of ours",
            recorded(|_| ()),
            pod_with(up(), |v| v["metadata"]["uid"] = json!("pod-2")),
            fence(),
            None,
            1,
            "Failed/SandboxLost",
        ),
    ];
    for (row, run, pod, fence, refused, now, expected) in rows {
        let facts = Facts::Started { pod, fence, making: Some(Box::new(making())) };
        assert_eq!(line(&plan(&run, &facts, refused, at(now))), expected, "{row}");
    }
    let no_account = Facts::Started { pod: Seen::Absent, fence: nothing(), making: Some(Box::new(Making { account: false, ..making() })) };
    assert_eq!(line(&plan(&started(|_| ()), &no_account, None, at(1))), "CreateAccount CreatePolicy CreatePolicy");
    let facts = Facts::Started { pod: pod(json!({})), fence: fence(), making: None };
    let Plan { writes, .. } = plan(&started(|_| ()), &facts, None, at(1));
    let [Write::Status(status)] = writes.as_slice() else { panic!("{writes:?}") };
    assert_eq!(status.pod_ref.as_ref().map(|pod| pod.uid.as_str()), Some("pod-1"));
}
