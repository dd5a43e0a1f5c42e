//! The real reconciler against an API server in memory: whole lives of a run, with a failing write at every place in turn and
//! a new process after it. The end must be the same, and the server's rules must hold all the way.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod fake_api;

use std::sync::Arc;

use agentrun_crds::names;
use agentrun_operator::agent_run::objects::pod::RunnerImage;
use agentrun_operator::agent_run::{self, plan::Again, sweep};
use agentrun_operator::backoff::Backoff;
use agentrun_operator::context::{Caches, Context, Guarded, Settings, Starts};
use agentrun_operator::driver::{DEADLINE, drive};
use agentrun_operator::metrics::Metrics;
use agentrun_operator::pki::{keeper, token_keys};
use fake_api::{Failure, Fake};
use jiff::Timestamp;
use kube::Client;
use kube::runtime::controller::Action;
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

const NS: &str = "team-a";
const RUNS: &str = "/apis/agentrun.dev/v1alpha1/namespaces/team-a/agentruns";

fn context(fake: &Fake, client: &Client) -> Arc<Context> {
    let clock = fake.clone();
    let reporter = Reporter { controller: "agentrun-operator".into(), instance: Some("test".into()) };
    Arc::new(Context {
        client: client.clone(),
        settings: Settings {
            namespace: "agentrun-system".into(),
            gateway_service: "agentrun-gateway".into(),
            image: RunnerImage { name: "runner:1".into(), pull_policy: "IfNotPresent".into() },
        },
        recorder: Recorder::new(client.clone(), reporter),
        metrics: Metrics::new(&mut Default::default()),
        backoff: Backoff::default(),
        clock: Box::new(move || clock.now()),
        starts: Starts::default(),
    })
}

struct World {
    fake: Fake,
    client: Client,
    run: String,
    name: String,
}

impl World {
    fn new() -> Self {
        let (fake, client) = Fake::start("2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap());
        let system = "/api/v1/namespaces/agentrun-system";
        let service = json!({"spec": {"clusterIP": "10.0.0.1", "selector": {"app": "gateway"}}});
        fake.put(&format!("{system}/services/agentrun-gateway"), service);
        fake.put(&format!("{system}/secrets/agentrun-gateway-tls"), json!({"data": {"ca.crt": "UEVN"}}));
        fake.put("/api/v1/namespaces/team-a", json!({"metadata": {"labels": {"agents": "yes"}}}));
        fake.put(
            "/apis/agentrun.dev/v1alpha1/namespaces/team-a/agentpolicies/default",
            json!({"apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentPolicy", "spec": {
                "models": [{"name": "small", "provider": "p", "model": "m"}], "images": ["tools:*"], "limits": {"concurrentRuns": 2}}}),
        );
        fake.put(
            "/apis/agentrun.dev/v1alpha1/namespaces/agentrun-system/modelproviders/p",
            json!({"apiVersion": "agentrun.dev/v1alpha1", "kind": "ModelProvider", "spec": {
                "dialect": "OpenAIChat", "url": "https://api.test/", "secretRef": {"name": "s", "key": "k"},
                "allowedNamespaces": {"matchLabels": {"agents": "yes"}}, "models": [{"name": "m"}]}}),
        );
        let world = World { run: format!("{RUNS}/fix"), name: names::child_name("run-uid", 1), fake, client };
        world.submit("fix", "run-uid", |_| ());
        world
    }

    fn submit(&self, name: &str, uid: &str, change: impl FnOnce(&mut Value)) {
        let mut run = json!({
            "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": name, "uid": uid, "generation": 1},
            "spec": {"instruction": "Fix it.", "model": "small", "agent": {"image": "tools:1"},
                "source": {"inline": {"files": [{"path": "a.py", "content": "x"}]}}},
        });
        change(&mut run);
        self.fake.put(&format!("{RUNS}/{name}"), run);
    }

    /// Reconcile until it comes to rest. An error is a crash: the next try is a new process, a second later.
    async fn settle(&self) -> Again {
        for _ in 0..5 {
            match agent_run::converge(&context(&self.fake, &self.client), NS, "fix").await {
                Ok(again) => return again,
                Err(_) => self.fake.advance(1),
            }
        }
        panic!("it does not settle: {:?}", self.fake.with(|state| state.done.clone()))
    }

    fn pod(&self) -> String {
        format!("/api/v1/namespaces/team-a/pods/{}", self.name)
    }

    fn status(&self) -> Value {
        self.fake.get(&self.run).map(|run| run["status"].clone()).unwrap_or_default()
    }

    fn condition(&self, kind: &str) -> String {
        let status = self.status();
        let found = status["conditions"].as_array().and_then(|list| list.iter().find(|c| c["type"] == kind)).cloned();
        found.map_or("-".into(), |c| format!("{} {}", c["status"].as_str().unwrap(), c["reason"].as_str().unwrap()))
    }

    /// What the kubelet does: start what was created, remove what was deleted.
    fn kubelet(&self) {
        let Some(pod) = self.fake.get(&self.pod()) else { return };
        if pod["metadata"]["deletionTimestamp"].is_null() {
            let runner = json!({"name": "runner", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}});
            self.fake.change(&self.pod(), |pod| pod["status"] = json!({"phase": "Running", "containerStatuses": [runner]}));
        } else {
            self.fake.remove(&self.pod());
        }
    }

    /// What the gateway does at the exchange.
    fn exchange(&self) {
        let at = self.fake.now().as_second();
        assert_eq!(self.status()["podRef"]["uid"], self.fake.get(&self.pod()).unwrap()["metadata"]["uid"], "recorded before the exchange");
        self.fake.change(&self.run, |run| {
            run["status"]["exchange"] = json!({"attempt": 1, "publicKey": "k", "nonce": "n", "at": at});
            run["status"]["budget"]["reservations"] = json!([{"id": "a", "holder": "g", "requests": 1, "inputTokens": 5, "since": at}]);
        });
    }

    fn result(&self, verdict: &str) {
        self.fake.change(&self.run, |run| {
            run["status"]["result"] = json!({"attempt": 1, "verdict": verdict, "message": "done", "changedFiles": 1, "steps": 2});
        });
    }

    /// Everything a run made is gone, but the namespace's own account and wall.
    fn assert_clean(&self) {
        assert_eq!(self.fake.paths("/run-"), Vec::<String>::new(), "children are left");
        assert_eq!(self.fake.with(|state| std::mem::take(&mut state.broken)), Vec::<String>::new());
    }

    fn created_pods(&self) -> usize {
        self.fake.with(|state| state.done.iter().filter(|write| *write == "POST /api/v1/namespaces/team-a/pods").count())
    }
}

async fn happy(world: &World) {
    world.settle().await;
    world.kubelet();
    world.settle().await;
    world.exchange();
    world.settle().await;
    assert_eq!(world.status()["phase"], "Running");
    assert_eq!(world.fake.paths("/secrets/run-"), Vec::<String>::new(), "the ticket goes once it was used");
    world.result("Succeeded");
    world.settle().await;
    world.kubelet();
    world.settle().await;
    let status = world.status();
    assert_eq!(status["phase"], "Succeeded");
    assert_eq!(world.condition("Complete"), "True Succeeded");
    assert_eq!(world.condition("Ready"), "True Succeeded");
    assert_eq!(world.condition("SandboxGone"), "True Removed");
    assert_eq!((&status["budget"]["gate"], &status["budget"]["spent"]["requests"]), (&json!("Closed"), &json!(1)));
    assert_eq!(status["requestsText"], "1/100");
    assert_eq!(world.fake.get(&world.run).unwrap()["metadata"]["finalizers"], json!([]));
    assert_eq!(world.created_pods(), 1);
    world.assert_clean();
}

async fn cancelled(world: &World) {
    world.settle().await;
    world.kubelet();
    world.exchange();
    world.settle().await;
    world.fake.change(&world.run, |run| run["spec"]["cancel"] = json!(true));
    world.settle().await;
    assert_eq!(world.status()["budget"]["gate"], "Closed", "authority goes first");
    assert_eq!(world.status()["phase"], "Cancelling");
    world.kubelet();
    world.settle().await;
    assert_eq!(world.status()["phase"], "Cancelled");
    assert_eq!(world.created_pods(), 1);
    world.assert_clean();
}

async fn deleted(world: &World) {
    world.settle().await;
    world.kubelet();
    world.exchange();
    world.settle().await;
    let now = world.fake.now().to_string();
    world.fake.change(&world.run, |run| run["metadata"]["deletionTimestamp"] = json!(now));
    world.settle().await;
    assert_eq!(world.status()["budget"]["gate"], "Closed");
    assert_eq!(world.fake.paths("/networkpolicies/run-").len(), 1, "the wall stands while the Pod does");
    world.kubelet();
    world.settle().await;
    assert_eq!(world.fake.get(&world.run), None, "the run is let go");
    world.assert_clean();
}

async fn lost(world: &World) {
    world.settle().await;
    world.kubelet();
    world.exchange();
    world.settle().await;
    world.fake.remove(&world.pod());
    world.settle().await;
    assert_eq!(world.condition("Complete"), "True SandboxLost");
    assert_eq!(world.condition("Stalled"), "True SandboxLost");
    assert_eq!(world.created_pods(), 1, "nothing is repeated");
    world.assert_clean();
}

async fn silent_node(world: &World) {
    world.settle().await;
    world.kubelet();
    world.exchange();
    world.fake.change(&world.run, |run| run["spec"]["cancel"] = json!(true));
    world.settle().await;
    world.fake.advance(30);
    world.settle().await;
    assert_eq!(world.status()["phase"], "Cancelled");
    assert_eq!(world.condition("SandboxGone"), "Unknown NodeSilent");
    assert_eq!(world.fake.get(&world.run).unwrap()["metadata"]["finalizers"], json!([]));
    world.assert_clean();
}

async fn refused(world: &World) {
    world.fake.change(&world.run, |run| run["spec"]["instruction"] = json!(""));
    world.settle().await;
    assert_eq!(world.condition("Complete"), "True InvalidSpec");
    assert_eq!(world.condition("Accepted"), "False InvalidSpec");
    assert_eq!(world.created_pods(), 0);
    world.assert_clean();
}

/// Run a story once unharmed, then with each write failing in each way.
async fn with_every_failure(story: impl AsyncFn(&World)) {
    let world = World::new();
    story(&world).await;
    let writes = world.fake.asked();
    assert!(writes > 0);
    for failure in [Failure::Before, Failure::After, Failure::Conflict] {
        for at in 1..=writes {
            let world = World::new();
            world.fake.with(|state| state.fail = Some((at, failure)));
            eprintln!("write {at} of {writes} fails: {failure:?}");
            story(&world).await;
        }
    }
}

#[tokio::test]
async fn a_run_succeeds_whatever_write_fails() {
    with_every_failure(happy).await;
}

#[tokio::test]
async fn a_run_is_cancelled_whatever_write_fails() {
    with_every_failure(cancelled).await;
}

#[tokio::test]
async fn a_deleted_run_leaves_nothing_whatever_write_fails() {
    with_every_failure(deleted).await;
}

#[tokio::test]
async fn a_lost_sandbox_is_not_repeated_whatever_write_fails() {
    with_every_failure(lost).await;
}

#[tokio::test]
async fn a_silent_node_does_not_hold_a_run_whatever_write_fails() {
    with_every_failure(silent_node).await;
}

#[tokio::test]
async fn a_bad_run_makes_no_pod_whatever_write_fails() {
    with_every_failure(refused).await;
}

#[tokio::test]
async fn an_unchanged_world_is_not_written_to() {
    let world = World::new();
    for step in 0..4 {
        world.settle().await;
        let writes = world.fake.asked();
        world.settle().await;
        assert_eq!(world.fake.asked(), writes, "step {step}");
        match step {
            0 => world.kubelet(),
            1 => world.exchange(),
            _ => world.result("ChecksFailed"),
        }
    }
    world.assert_no_rule_broken();
}

impl World {
    fn assert_no_rule_broken(&self) {
        assert_eq!(self.fake.with(|state| std::mem::take(&mut state.broken)), Vec::<String>::new());
    }
}

#[tokio::test]
async fn refused_children_end_the_run_with_the_servers_words() {
    // where, code, message -> reason, whether a Pod may come later
    for (path, code, message, expected) in [
        ("/pods", 403, "pods \"x\" is forbidden: violates PodSecurity \"restricted\"", "True PodRejected"),
        ("/pods", 422, "Pod is invalid: spec.runtimeClassName", "True PodRejected"),
        ("/secrets", 403, "secrets is forbidden: exceeded quota: secrets", "True PodRejected"),
        ("/networkpolicies", 403, "denied the request: by some webhook", "True PodRejected"),
        ("/pods", 403, "pods is forbidden: exceeded quota: pods", "False Starting"),
    ] {
        let world = World::new();
        world.fake.with(|state| state.refuse = Some((path.to_owned(), code, message.to_owned())));
        world.settle().await;
        assert_eq!(world.condition("Complete"), expected, "{path} {message}");
        if expected == "True PodRejected" {
            assert!(world.status().to_string().contains(&message[..20].replace('"', "\\\"")), "{}", world.status());
            world.assert_clean();
        } else {
            world.fake.with(|state| state.refuse = None);
            world.settle().await;
            assert_eq!(world.created_pods(), 1, "a quota that frees itself");
        }
    }
    let world = World::new();
    let message = "pods is forbidden: User \"operator\" cannot create resource \"pods\"".to_owned();
    world.fake.with(|state| state.refuse = Some(("/pods".into(), 403, message)));
    let error = agent_run::converge(&context(&world.fake, &world.client), NS, "fix").await.unwrap_err();
    assert_eq!(error.class().label(), "denied", "an installation's fault is not the run's");
    assert_eq!(world.condition("Complete"), "False Starting");
}

#[tokio::test]
async fn somebody_elses_pod_is_left_alone() {
    let world = World::new();
    world.fake.put(&world.pod(), json!({"metadata": {"labels": {"mine": "yes"}}, "spec": {"containers": []}}));
    world.settle().await;
    assert_eq!(world.condition("Complete"), "True PodRejected");
    world.settle().await;
    assert_eq!(world.fake.get(&world.pod()).unwrap()["metadata"]["labels"]["mine"], "yes");
    assert_eq!(world.created_pods(), 0);
}

#[tokio::test]
async fn a_weakened_wall_is_restored_before_the_pod() {
    let world = World::new();
    let deny = "/apis/networking.k8s.io/v1/namespaces/team-a/networkpolicies/agentrun-sandbox-deny";
    world.fake.put(
        deny,
        json!({"spec": {"podSelector": {"matchLabels": {"agentrun.dev/component": "sandbox", "x": "y"}}, "policyTypes": ["Egress"], "egress": [{}]}}),
    );
    world.settle().await;
    let restored = world.fake.get(deny).unwrap();
    let expected = json!({"podSelector": {"matchLabels": {"agentrun.dev/component": "sandbox"}}, "policyTypes": ["Ingress", "Egress"]});
    assert_eq!(restored["spec"], expected);
    assert_eq!(world.created_pods(), 1);
}

#[tokio::test]
async fn the_cap_is_exact_under_a_rush() {
    let world = World::new();
    for n in 0..6 {
        world.submit(&format!("run-{n}"), &format!("uid-run-{n}"), |run| run["spec"]["priority"] = json!(n));
    }
    let ctx = context(&world.fake, &world.client);
    let all = (0..6).map(|n| {
        let ctx = Arc::clone(&ctx);
        tokio::spawn(async move { agent_run::converge(&ctx, NS, &format!("run-{n}")).await.map(|_| ()) })
    });
    for task in all.collect::<Vec<_>>() {
        task.await.unwrap().unwrap();
    }
    let phases = || -> Vec<String> {
        let of = |n: i32| world.fake.get(&format!("{RUNS}/run-{n}")).unwrap()["status"]["phase"].as_str().unwrap().to_owned();
        (0..6).map(of).collect()
    };
    assert_eq!(phases().iter().filter(|phase| *phase == "Starting").count(), 2, "{:?}", phases());
    assert_eq!(phases().iter().filter(|phase| *phase == "Queued").count(), 4);
    // One ends: the most important of those that wait is next, whoever asks first.
    let first = phases().iter().position(|phase| phase == "Starting").unwrap();
    world.fake.change(&format!("{RUNS}/run-{first}"), |run| {
        run["status"]["phase"] = json!("Succeeded");
        run["status"]["budget"]["gate"] = json!("Closed");
    });
    let queued: Vec<usize> = (0..6).filter(|n| phases()[*n] == "Queued").collect();
    for n in &queued {
        agent_run::converge(&ctx, NS, &format!("run-{n}")).await.unwrap();
    }
    assert_eq!(phases()[*queued.last().unwrap()], "Starting", "{:?}", phases());
    assert_eq!(phases().iter().filter(|phase| *phase == "Starting").count(), 2);
}

#[tokio::test]
async fn retention_deletes_the_run() {
    let world = World::new();
    world.fake.change(&world.run, |run| run["spec"]["ttlSecondsAfterFinished"] = json!(60));
    happy(&world).await;
    assert!(matches!(world.settle().await, Again::In(pause) if pause.as_secs() <= 60));
    world.fake.advance(61);
    assert_eq!(world.settle().await, Again::Never);
    assert_eq!(world.fake.get(&world.run), None);
}

#[tokio::test]
async fn a_run_that_does_not_parse_can_still_be_deleted() {
    let world = World::new();
    world.settle().await;
    let now = world.fake.now().to_string();
    world.fake.change(&world.run, |run| {
        run["spec"]["model"] = json!(7);
        run["metadata"]["deletionTimestamp"] = json!(now);
    });
    world.settle().await;
    world.kubelet();
    world.settle().await;
    assert_eq!(world.fake.get(&world.run), None);
    world.assert_clean();
}

#[tokio::test]
async fn policy_and_run_may_come_in_any_order() {
    let path = "/apis/agentrun.dev/v1alpha1/namespaces/team-a/agentpolicies/default";
    let world = World::new();
    let policy = world.fake.get(path).unwrap();
    world.fake.remove(path);
    assert!(matches!(world.settle().await, Again::In(pause) if pause.as_secs() <= 10));
    assert_eq!(world.condition("Accepted"), "Unknown WaitingForPolicy");
    world.fake.advance(9);
    world.fake.put(path, policy);
    world.settle().await;
    assert_eq!(world.status()["phase"], "Starting");

    let world = World::new();
    world.fake.remove(path);
    world.settle().await;
    world.fake.advance(10);
    world.settle().await;
    assert_eq!(world.condition("Complete"), "True PolicyMissing");
}

#[tokio::test]
async fn certificates_and_keys_are_made_once_and_renewed() {
    let world = World::new();
    let secret = |name: &str| format!("/api/v1/namespaces/agentrun-system/secrets/{name}");
    world.fake.remove(&secret("agentrun-gateway-tls"));
    let ctx = context(&world.fake, &world.client);
    keeper::keep(&ctx).await.unwrap();
    token_keys::ensure(&ctx).await.unwrap();
    let serving = world.fake.get(&secret("agentrun-gateway-tls")).unwrap();
    let keys = world.fake.get(&secret("agentrun-token-keys")).unwrap();
    for key in ["tls.crt", "tls.key", "ca.crt"] {
        assert!(serving["data"][key].is_string(), "{key}");
    }
    assert_eq!(keys["data"]["1"].as_str().unwrap().len(), 44, "32 bytes in base64");
    let writes = world.fake.asked();
    keeper::keep(&ctx).await.unwrap();
    token_keys::ensure(&ctx).await.unwrap();
    assert_eq!(world.fake.asked(), writes, "nothing changed, nothing is written");

    world.fake.advance(61 * 86_400);
    keeper::keep(&ctx).await.unwrap();
    let renewed = world.fake.get(&secret("agentrun-gateway-tls")).unwrap();
    assert_ne!(renewed["data"]["tls.crt"], serving["data"]["tls.crt"]);
    assert_eq!(renewed["data"]["ca.crt"], serving["data"]["ca.crt"], "the authority stays");

    world.fake.advance(200 * 86_400);
    keeper::keep(&ctx).await.unwrap();
    let announced = world.fake.get(&secret("agentrun-gateway-tls")).unwrap();
    assert!(
        announced["data"]["ca.crt"].as_str().unwrap().len() > serving["data"]["ca.crt"].as_str().unwrap().len() * 3 / 2,
        "two authorities"
    );
    assert!(world.fake.get(&secret("agentrun-ca")).unwrap()["data"]["previous.key"].is_string());
    world.fake.change(&secret("agentrun-gateway-tls"), |secret| secret["data"] = json!({}));
    keeper::keep(&ctx).await.unwrap();
    assert!(world.fake.get(&secret("agentrun-gateway-tls")).unwrap()["data"]["tls.crt"].is_string(), "a damaged Secret is repaired");
}

fn caches(run: Option<&Value>, pod: Option<&Value>) -> Caches {
    let (runs, mut run_writer) = reflector::store();
    let (pods, mut pod_writer) = reflector::store();
    let (policies, _) = reflector::store();
    if let Some(run) = run {
        run_writer.apply_watcher_event(&Event::Apply(serde_json::from_value(run.clone()).unwrap()));
    }
    if let Some(pod) = pod {
        pod_writer.apply_watcher_event(&Event::Apply(serde_json::from_value(pod.clone()).unwrap()));
    }
    Caches { runs, pods, policies }
}

fn guarded(run: &Value) -> Guarded {
    serde_json::from_value(run.clone()).unwrap()
}

#[tokio::test]
async fn old_caches_make_no_second_pod() {
    let world = World::new();
    let ctx = context(&world.fake, &world.client);
    let fresh = world.fake.get(&world.run).unwrap();
    agent_run::converge(&ctx, NS, "fix").await.unwrap();
    let recorded = world.fake.get(&world.run).unwrap();
    // The cache has the run from before its start, then the run but not its Pod.
    for run in [&fresh, &recorded] {
        agent_run::reconcile(&ctx, &caches(Some(run), None), &guarded(run)).await.unwrap();
        assert_eq!(world.created_pods(), 1);
        assert_eq!(world.status()["phase"], "Starting");
    }
    // The Pod came and went, and the cache still has it: the slow look finds out, and nothing is made again.
    world.fake.remove(&world.pod());
    agent_run::reconcile(&ctx, &caches(Some(&fresh), None), &guarded(&fresh)).await.unwrap();
    assert_eq!(world.condition("Complete"), "True SandboxLost");
    assert_eq!(world.created_pods(), 1);
}

#[tokio::test]
async fn where_nothing_is_to_be_done_nothing_is_asked() {
    let world = World::new();
    world.settle().await;
    world.kubelet();
    world.exchange();
    world.settle().await;
    let (run, pod) = (world.fake.get(&world.run).unwrap(), world.fake.get(&world.pod()).unwrap());
    let requests = world.fake.with(|state| state.requests);
    let ctx = context(&world.fake, &world.client);
    let again = agent_run::reconcile(&ctx, &caches(Some(&run), Some(&pod)), &guarded(&run)).await.unwrap();
    assert!(matches!(again, Again::In(_)), "the wall time is waited for: {again:?}");
    assert_eq!(world.fake.with(|state| state.requests), requests);
}

#[tokio::test]
async fn pods_that_no_run_wants_are_swept() {
    // phase and finalizer of the run, whether it is there -> whether its Pod goes
    for (phase, held, exists, swept) in
        [("Running", true, true, false), ("Failed", true, true, false), ("Failed", false, true, true), ("Running", true, false, true)]
    {
        let world = World::new();
        world.settle().await;
        world.fake.change(&world.run, |run| {
            run["status"]["phase"] = json!(phase);
            run["metadata"]["finalizers"] = if held { json!([names::FINALIZER]) } else { json!([]) };
        });
        let (run, pod) = (world.fake.get(&world.run), world.fake.get(&world.pod()));
        if !exists {
            world.fake.remove(&world.run);
        }
        let caches = caches(run.as_ref().filter(|_| exists), pod.as_ref());
        sweep::once(&context(&world.fake, &world.client), &caches).await.unwrap();
        let deleted = !world.fake.get(&world.pod()).unwrap()["metadata"]["deletionTimestamp"].is_null();
        assert_eq!(deleted, swept, "{phase} held {held} exists {exists}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reconcile_that_hangs_or_panics_is_ended_and_tried_again() {
    let world = World::new();
    let ctx = context(&world.fake, &world.client);
    let run = guarded(&world.fake.get(&world.run).unwrap());
    let begun = tokio::time::Instant::now();
    let action = drive(&ctx, &run, std::future::pending()).await;
    assert_eq!(begun.elapsed(), DEADLINE);
    assert_ne!(action, Action::await_change());
    let action = drive(&ctx, &run, async { panic!("a bug") }).await;
    assert_ne!(action, Action::await_change(), "a panic ends one reconcile only, and it is tried again");
    assert_eq!(drive(&ctx, &run, async { Ok(Again::Never) }).await, Action::await_change());
    let pause = std::time::Duration::from_secs(7);
    assert_eq!(drive(&ctx, &run, async move { Ok(Again::In(pause)) }).await, Action::requeue(pause));
}
