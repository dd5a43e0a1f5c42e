//! Whether an exchange is granted, decided on the very object that the answer is written to. Pure.

use agentrun_crds::agent_policy::HostUsers;
use agentrun_crds::agent_run_status::{Exchange, Resolved};
use agentrun_crds::budget::Gate;
use agentrun_crds::{AgentRun, names};
use agentrun_protocol::exchange::Wall;
use http::StatusCode;
use subtle::ConstantTimeEq;

use super::request::Presented;
use super::{compromised, network, refused};
use crate::error::ApiError;
use crate::runs;

/// How long the same key may ask again.
const REPEAT_SECONDS: i64 = 60;

/// What is known of the caller: a live Pod of this run, and what it presented.
pub struct Facts {
    pub pod_name: String,
    pub pod_uid: String,
    pub presented: Presented,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// The first holder: write this, then hand out its tokens.
    Grant(Exchange),
    /// The same holder again: the same tokens.
    Repeat(Exchange),
    /// Another holder with both credentials: mark it.
    Compromise,
}

/// Decide at `now`, Unix seconds.
pub fn decide(run: &AgentRun, facts: &Facts, now: i64) -> Result<Decision, ApiError> {
    let presented = &facts.presented;
    let status = run.status.as_ref().ok_or_else(refused)?;
    let attempt = status.attempt.ok_or_else(refused)?;
    let expected = status.ticket_sha256.as_deref().and_then(from_hex).ok_or_else(refused)?;
    if !bool::from(expected.ct_eq(&presented.ticket_sha256)) {
        tracing::warn!(run = runs::name(run), "an exchange came with a wrong ticket");
        return Err(refused());
    }
    if facts.pod_name != names::child_name(runs::uid(run), attempt) {
        return Err(refused());
    }
    let Some(pod) = &status.pod_ref else {
        return Err(ApiError::unavailable("pod_not_recorded", "the operator has not recorded the Pod yet; try again"));
    };
    if pod.uid != facts.pod_uid {
        return Err(refused());
    }
    // From here on the caller holds both credentials.
    if runs::is_terminal(run) || run.spec.cancel || run.metadata.deletion_timestamp.is_some() {
        return Err(not_active());
    }
    if let Some(exchange) = status.exchange.as_ref().filter(|exchange| exchange.attempt == attempt) {
        if exchange.compromised {
            return Err(compromised());
        }
        if exchange.public_key != presented.public_key {
            return Ok(Decision::Compromise);
        }
        if now > exchange.at.saturating_add(REPEAT_SECONDS) {
            return Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "exchange_over",
                "an exchange may be repeated for 60 s; renew a live token instead",
            ));
        }
        return open(run).map(|()| Decision::Repeat(exchange.clone()));
    }
    open(run)?;
    let resolved = status.resolved.as_ref().ok_or_else(not_active)?;
    confined(resolved, &presented.walls)?;
    network::judge(resolved.network_enforcement, &presented.network)?;
    let mut walls: Vec<String> = presented.walls.iter().map(|wall| wall.as_str().to_owned()).collect();
    walls.sort();
    walls.dedup();
    let (public_key, nonce) = (presented.public_key.clone(), presented.nonce.clone());
    let network = presented.network.clone();
    Ok(Decision::Grant(Exchange { attempt, public_key, nonce, at: now, compromised: false, walls, network }))
}

fn open(run: &AgentRun) -> Result<(), ApiError> {
    let budget = run.status.as_ref().and_then(|status| status.budget.as_ref());
    if budget.is_some_and(|budget| budget.gate == Gate::Open) { Ok(()) } else { Err(not_active()) }
}

fn not_active() -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "run_not_active", "the run has ended, was asked to end, or its budget is closed")
}

fn confined(resolved: &Resolved, walls: &[Wall]) -> Result<(), ApiError> {
    let namespace = (resolved.host_users == HostUsers::Isolated).then_some(Wall::UserNamespace);
    let missing: Vec<&str> =
        Wall::REQUIRED.iter().copied().chain(namespace).filter(|wall| !walls.contains(wall)).map(Wall::as_str).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("the sandbox lacks {}; tokens are handed out to a fully confined runner only", missing.join(", "));
    Err(ApiError::new(StatusCode::FORBIDDEN, "confinement_incomplete", message).field("walls"))
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use agentrun_crds::network_probe::{NetworkProbe, NetworkTarget, ProbeOutcome};
    use serde_json::{Value, json};
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::fixtures::{NOW, POD_UID, RUN_UID, TICKET, run_json};

    fn facts() -> Facts {
        let mut walls = Wall::REQUIRED.to_vec();
        walls.push(Wall::UserNamespace);
        Facts {
            pod_name: names::child_name(RUN_UID, 1),
            pod_uid: POD_UID.into(),
            presented: Presented {
                ticket_sha256: Sha256::digest(TICKET).into(),
                pod_token: "t".into(),
                public_key: "key".into(),
                nonce: "nonce".into(),
                walls,
                network: NetworkTarget::ALL.iter().map(|target| probe(*target, ProbeOutcome::Held)).collect(),
            },
        }
    }

    fn probe(target: NetworkTarget, outcome: ProbeOutcome) -> NetworkProbe {
        NetworkProbe { target, outcome }
    }

    fn fresh() -> Value {
        let mut run = run_json();
        run["status"]["exchange"] = Value::Null;
        run
    }

    fn exchanged(key: &str, at: i64) -> Value {
        let mut run = run_json();
        run["status"]["exchange"] = json!({ "attempt": 1, "publicKey": key, "nonce": "first", "at": at });
        run
    }

    fn code(run: Value, facts: &Facts) -> String {
        match decide(&serde_json::from_value(run).unwrap(), facts, NOW) {
            Ok(Decision::Grant(_)) => "grant".into(),
            Ok(Decision::Repeat(exchange)) => format!("repeat {}", exchange.nonce),
            Ok(Decision::Compromise) => "compromise".into(),
            Err(error) => format!("{} {}", error.status.as_u16(), error.code),
        }
    }

    #[test]
    fn every_state_of_the_run() {
        let with = |mut run: Value, pointer: &str, new: Value| {
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            run.pointer_mut(parent).unwrap()[name] = new;
            run
        };
        let rows: Vec<(&str, Value, &str)> = vec![
            ("first", fresh(), "grant"),
            ("lost reply", exchanged("key", NOW - 60), "repeat first"),
            ("too late", exchanged("key", NOW - 61), "403 exchange_over"),
            ("second holder", exchanged("other", NOW - 1), "compromise"),
            ("second holder, much later", exchanged("other", NOW - 1000), "compromise"),
            ("second holder of a closed budget", with(exchanged("other", NOW - 1), "/status/budget/gate", json!("Closed")), "compromise"),
            ("compromised already", with(exchanged("key", NOW), "/status/exchange/compromised", json!(true)), "403 compromised"),
            ("an earlier attempt's exchange", with(exchanged("other", NOW), "/status/exchange/attempt", json!(0)), "grant"),
            ("Pod not recorded", with(fresh(), "/status/podRef", Value::Null), "503 pod_not_recorded"),
            ("another Pod", with(fresh(), "/status/podRef/uid", json!("x")), "401 exchange_refused"),
            ("another attempt", with(fresh(), "/status/attempt", json!(2)), "401 exchange_refused"),
            ("no attempt", with(fresh(), "/status/attempt", Value::Null), "401 exchange_refused"),
            ("wrong ticket", with(fresh(), "/status/ticketSha256", json!("00".repeat(32))), "401 exchange_refused"),
            ("no ticket", with(fresh(), "/status/ticketSha256", Value::Null), "401 exchange_refused"),
            ("odd ticket", with(fresh(), "/status/ticketSha256", json!("é".repeat(32))), "401 exchange_refused"),
            ("closed", with(fresh(), "/status/budget/gate", json!("Closed")), "403 run_not_active"),
            ("closed, repeated", with(exchanged("key", NOW), "/status/budget/gate", json!("Closed")), "403 run_not_active"),
            ("no budget", with(fresh(), "/status/budget", Value::Null), "403 run_not_active"),
            ("cancelled", with(fresh(), "/spec/cancel", json!(true)), "403 run_not_active"),
            ("being deleted", with(fresh(), "/metadata/deletionTimestamp", json!("2026-11-30T00:00:00Z")), "403 run_not_active"),
            ("terminal", with(fresh(), "/status/phase", json!("Failed")), "403 run_not_active"),
            ("terminal, second holder", with(exchanged("other", NOW), "/status/phase", json!("Succeeded")), "403 run_not_active"),
        ];
        for (name, run, expected) in rows {
            assert_eq!(code(run, &facts()), expected, "{name}");
        }
    }

    #[test]
    fn each_missing_wall_is_named() {
        for wall in Wall::REQUIRED.iter().chain([&Wall::UserNamespace]) {
            let mut facts = facts();
            facts.presented.walls.retain(|other| other != wall);
            let error = decide(&serde_json::from_value(fresh()).unwrap(), &facts, NOW).unwrap_err();
            assert_eq!((error.status.as_u16(), error.code), (403, "confinement_incomplete"));
            assert!(error.message.contains(wall.as_str()), "{}", error.message);
        }
        let mut shared = fresh();
        shared["status"]["resolved"]["hostUsers"] = json!("Shared");
        let mut facts = facts();
        facts.presented.walls.retain(|wall| *wall != Wall::UserNamespace);
        assert_eq!(code(shared, &facts), "grant");
    }

    #[test]
    fn what_was_reached_is_refused_or_recorded() {
        for (enforcement, expected) in [("Required", "403 network_not_enforced"), ("ExceptNode", "grant"), ("NotRequired", "grant")] {
            let mut run = fresh();
            run["status"]["resolved"]["networkEnforcement"] = json!(enforcement);
            let mut facts = facts();
            facts.presented.network[1] = probe(NetworkTarget::Node, ProbeOutcome::Reached);
            assert_eq!(code(run.clone(), &facts), expected, "{enforcement}");
            if let Ok(Decision::Grant(exchange)) = decide(&serde_json::from_value(run).unwrap(), &facts, NOW) {
                assert_eq!(exchange.network, facts.presented.network);
            }
        }
    }
}
