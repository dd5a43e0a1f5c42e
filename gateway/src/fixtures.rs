//! Objects that many tests start from: a run in the middle of its life.

use agentrun_crds::budget::{Budget, Limit};
use agentrun_crds::{AgentRun, names};
use agentrun_protocol::token::{Audience, Claims, KeyRing};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

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
