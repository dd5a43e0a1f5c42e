//! What many tests start from: a run in the middle of its life, and a gateway on a fake API server.

use std::path::Path;
use std::sync::{Arc, Mutex};

use agentrun_crds::budget::{Budget, Limit};
use agentrun_crds::{AgentRun, names};
use agentrun_protocol::event::EventType;
use agentrun_protocol::token::{Audience, Claims, KeyRing};
use axum::Router;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::app::{AppState, Parts, Recorder, sandbox_router};
use crate::auth::TokenKeys;
use crate::budget::{CallLimits, RateLimits};
use crate::clock::Clock;
use crate::config::Config;
use crate::fake_api::FakeApi;
use crate::store::Stores;

/// Unix seconds of the exchange.
pub const NOW: i64 = 1_800_000_000;
pub const RUN_UID: &str = "11111111-1111-4111-8111-111111111111";
pub const POD_UID: &str = "22222222-2222-4222-8222-222222222222";
pub const NONCE: [u8; 16] = [3; 16];
pub const TICKET: [u8; 32] = [9; 32];

/// An exchanged, running run with 10 requests.
pub fn run() -> AgentRun {
    serde_json::from_value(run_json()).unwrap()
}

/// The same as JSON.
pub fn run_json() -> Value {
    let budget = Budget::new(Limit { requests: 10, ..Limit::default() });
    json!({
        "apiVersion": "agentrun.dev/v1alpha1",
        "kind": "AgentRun",
        "metadata": { "name": "fix-it", "namespace": "team", "uid": RUN_UID, "resourceVersion": "1" },
        "spec": {
            "instruction": "Fix it.",
            "source": { "inline": { "files": [{ "path": "a.py", "content": "x = 1\n", "executable": true }] } },
            "checks": [{ "name": "unit", "argv": ["python3", "-m", "pytest"] }],
            "model": "demo",
        },
        "status": {
            "attempt": 1,
            "podRef": { "name": names::child_name(RUN_UID, 1), "uid": POD_UID },
            "ticketSha256": hex(&TICKET),
            "budget": budget,
            "exchange": { "attempt": 1, "publicKey": "", "nonce": URL_SAFE_NO_PAD.encode(NONCE), "at": NOW },
            "resolved": {
                "policySha256": "", "image": "img", "maxSteps": 12, "wallTimeSeconds": 180, "startupDeadlineSeconds": 300,
                "allowedPaths": ["**"], "hostUsers": "Isolated", "cpu": "1", "memory": "1Gi", "workspace": "1Gi", "budget": budget.limit,
                "checks": [{ "name": "unit", "argv": ["python3", "-m", "pytest"] }],
                "model": {
                    "name": "demo", "provider": "scripted", "model": "fix-calc", "maxOutputTokens": 4096,
                    "inputMicrosPerMillion": 1_000_000, "outputMicrosPerMillion": 2_000_000,
                },
            },
        },
    })
}

fn hex(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Claims that `run` honours.
pub fn claims(audience: Audience) -> Claims {
    let uid = |text| uuid::Uuid::parse_str(text).unwrap().into_bytes();
    Claims { audience, run_uid: uid(RUN_UID), attempt: 1, pod_uid: uid(POD_UID), issued_at: NOW, expires_at: NOW + 900, nonce: NONCE }
}

/// One key.
pub fn ring() -> KeyRing {
    KeyRing::new([(1, vec![7; 32])]).unwrap()
}

/// Events as they were recorded.
#[derive(Clone, Default)]
pub struct Recorded(pub Arc<Mutex<Vec<(String, EventType, Value)>>>);

impl Recorder for Recorded {
    fn record(&self, run: Arc<AgentRun>, key: String, kind: EventType, data: Value) -> BoxFuture<'static, ()> {
        self.record_soon(run, key, kind, data);
        self.flush()
    }

    fn record_soon(&self, _: Arc<AgentRun>, key: String, kind: EventType, data: Value) {
        self.0.lock().unwrap().push((key, kind, data));
    }

    fn flush(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

impl Recorded {
    /// The data of all events of a type.
    pub fn of(&self, kind: EventType) -> Vec<Value> {
        self.0.lock().unwrap().iter().filter(|(_, other, _)| *other == kind).map(|(_, _, data)| data.clone()).collect()
    }
}

/// One gateway on a fake API server; its folder lives as long as it.
pub struct Gateway {
    pub state: AppState,
    pub events: Recorded,
    pub sandbox: Router,
    _folder: tempfile::TempDir,
}

/// A gateway process named `instance` that has seen the run, with the API server's clock: ten seconds after the exchange, unless a test sets it.
pub fn gateway(api: &FakeApi, instance: &str) -> Gateway {
    gateway_with(api, instance, RateLimits::default())
}

/// Embedded stores as they are by default.
pub fn stores(folder: &Path, clock: Clock) -> Stores {
    let config = <Config as clap::Parser>::parse_from(["gateway"]);
    Stores::embedded(folder, &config.store, clock).unwrap()
}

/// The same with limits per minute.
pub fn gateway_with(api: &FakeApi, instance: &str, rate_limits: RateLimits) -> Gateway {
    let folder = tempfile::tempdir().unwrap();
    let seconds = api.clock();
    let clock = Clock::from_fn(move || seconds.load(std::sync::atomic::Ordering::Relaxed) * 1000);
    let events = Recorded::default();
    let (_, keys) = TokenKeys::new(ring());
    let state = AppState::assemble(Parts {
        clock: clock.clone(),
        kube: api.client(),
        namespace: "agentrun-system".into(),
        instance: instance.into(),
        keys,
        stores: stores(folder.path(), clock),
        recorder: Arc::new(events.clone()),
        call_limits: CallLimits { rates: rate_limits, in_flight: 64 },
    });
    tokio::spawn(state.ledger.keep());
    state.policies.insert_for_test(api.policy());
    if api.lock().run.is_object() {
        state.runs.insert_for_test(api.run());
    }
    Gateway { sandbox: sandbox_router(state.clone()), state, events, _folder: folder }
}
