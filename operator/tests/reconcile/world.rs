//! A platform with one run, and what kubelet and gateway do to it.

use std::sync::Arc;

use crate::fake_api::Fake;
use agentrun_crds::names;
use agentrun_operator::agent_run::objects::pod::RunnerImage;
use agentrun_operator::agent_run::objects::probed::Probed;
use agentrun_operator::agent_run::{self, plan::Again};
use agentrun_operator::backoff::Backoff;
use agentrun_operator::context::{Context, Settings, Starts};
use agentrun_operator::metrics::Metrics;
use jiff::Timestamp;
use kube::Client;
use kube::runtime::events::{Recorder, Reporter};
use serde_json::{Value, json};

pub const NS: &str = "team-a";
pub const RUNS: &str = "/apis/agentrun.dev/v1alpha1/namespaces/team-a/agentruns";

pub fn context(fake: &Fake, client: &Client) -> Arc<Context> {
    let clock = fake.clone();
    let reporter = Reporter { controller: "agentrun-operator".into(), instance: Some("test".into()) };
    Arc::new(Context {
        client: client.clone(),
        settings: Settings {
            namespace: "agentrun-system".into(),
            gateway_service: "agentrun-gateway".into(),
            image: RunnerImage { name: "runner:1".into(), pull_policy: "IfNotPresent".into() },
            probed: Probed { api_server: "10.96.0.1:443".parse().unwrap(), name_server: None, internet: None },
            record_retention_days: 365,
        },
        recorder: Recorder::new(client.clone(), reporter),
        metrics: Metrics::new(&mut Default::default()),
        backoff: Backoff::default(),
        clock: Box::new(move || clock.now()),
        starts: Starts::default(),
        gateway: Default::default(),
    })
}

pub struct World {
    pub fake: Fake,
    pub client: Client,
    pub run: String,
    pub name: String,
}

impl World {
    pub fn new() -> Self {
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

    pub fn submit(&self, name: &str, uid: &str, change: impl FnOnce(&mut Value)) {
        let mut run = json!({
            "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": name, "uid": uid, "generation": 1},
            "spec": {"instruction": "Fix it.", "model": "small", "agent": {"image": "tools:1"},
                "source": {"inline": {"files": [{"path": "a.py", "content": "x"}]}}},
            // The schema's default.
            "status": {"observedGeneration": -1},
        });
        change(&mut run);
        self.fake.put(&format!("{RUNS}/{name}"), run);
    }

    /// Reconcile until it comes to rest. An error is a crash: the next try is a new process, a second later.
    pub async fn settle(&self) -> Again {
        for _ in 0..5 {
            match agent_run::converge(&context(&self.fake, &self.client), NS, "fix").await {
                Ok(again) => return again,
                Err(_) => self.fake.advance(1),
            }
        }
        panic!("it does not settle: {:?}", self.fake.with(|state| state.done.clone()))
    }

    pub fn pod(&self) -> String {
        format!("/api/v1/namespaces/team-a/pods/{}", self.name)
    }

    pub fn status(&self) -> Value {
        self.fake.get(&self.run).map(|run| run["status"].clone()).unwrap_or_default()
    }

    pub fn condition(&self, kind: &str) -> String {
        let status = self.status();
        let found = status["conditions"].as_array().and_then(|list| list.iter().find(|c| c["type"] == kind)).cloned();
        found.map_or("-".into(), |c| format!("{} {}", c["status"].as_str().unwrap(), c["reason"].as_str().unwrap()))
    }

    /// The namespace's NetworkPolicies.
    pub fn network_policies(&self) -> Vec<Value> {
        self.fake.paths("/namespaces/team-a/networkpolicies/").iter().filter_map(|path| self.fake.get(path)).collect()
    }

    /// What the kubelet does: start what was created, remove what was deleted.
    pub fn kubelet(&self) {
        let Some(pod) = self.fake.get(&self.pod()) else { return };
        if pod["metadata"]["deletionTimestamp"].is_null() {
            let runner = json!({"name": "runner", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}});
            self.fake.change(&self.pod(), |pod| pod["status"] = json!({"phase": "Running", "containerStatuses": [runner]}));
        } else {
            self.fake.remove(&self.pod());
        }
    }

    /// What the gateway does at the exchange.
    pub fn exchange(&self) {
        let at = self.fake.now().as_second();
        assert_eq!(self.status()["podRef"]["uid"], self.fake.get(&self.pod()).unwrap()["metadata"]["uid"], "recorded before the exchange");
        self.fake.change(&self.run, |run| {
            run["status"]["exchange"] = json!({"attempt": 1, "publicKey": "k", "nonce": "n", "at": at});
            run["status"]["budget"]["reservations"] = json!([{"id": "a", "holder": "g", "requests": 1, "inputTokens": 5, "since": at}]);
        });
    }

    pub fn result(&self, verdict: &str) {
        self.fake.change(&self.run, |run| {
            run["status"]["result"] = json!({"attempt": 1, "verdict": verdict, "message": "done", "changedFiles": 1, "steps": 2});
        });
    }

    /// Everything a run made is gone, but the namespace's own account and wall.
    pub fn assert_clean(&self) {
        assert_eq!(self.fake.paths("/run-"), Vec::<String>::new(), "children are left");
        assert_eq!(self.fake.with(|state| std::mem::take(&mut state.broken)), Vec::<String>::new());
    }

    pub fn created_pods(&self) -> usize {
        self.fake.with(|state| state.done.iter().filter(|write| *write == "POST /api/v1/namespaces/team-a/pods").count())
    }
}

impl World {
    pub fn assert_no_rule_broken(&self) {
        assert_eq!(self.fake.with(|state| std::mem::take(&mut state.broken)), Vec::<String>::new());
    }
}
