//! POST of events by the runner: every field is checked, then all are stored or none.

use agentrun_protocol::event::{AppendResponse, MAX_APPEND_BYTES, MAX_BATCH, MAX_DATA_BYTES, MAX_KEY_BYTES, NewEvent};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use serde_json::Value;

use crate::app::AppState;
use crate::auth::{Events, RunCaller};
use crate::body::{self, invalid};
use crate::error::ApiError;
use crate::store::{Gate, NewRecord, Origin, RunRef};

pub(super) async fn append(caller: RunCaller<Events>, State(state): State<AppState>, body: Body) -> Result<Json<AppendResponse>, ApiError> {
    let run = RunRef::of(&caller.run);
    let _place = state.stores.gates.enter(Gate::Append, &run.uid)?;
    let records = check(&body::read(body, MAX_APPEND_BYTES).await?)?;
    let seqs = state.stores.events.append(&run, i64::from(caller.claims.attempt), Origin::Sandbox, records).await?;
    Ok(Json(AppendResponse { seqs }))
}

/// The records of a body, checked.
fn check(body: &[u8]) -> Result<Vec<NewRecord>, ApiError> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Envelope {
        events: Vec<Value>,
    }
    let envelope: Envelope = body::typed(body::json(body)?, "body")?;
    let count = envelope.events.len();
    if count == 0 || count > MAX_BATCH {
        return Err(invalid("events", format!("there are {count}; 1 to {MAX_BATCH} are allowed")));
    }
    envelope.events.into_iter().enumerate().map(|(index, event)| record(event, &format!("events[{index}]"))).collect()
}

fn record(event: Value, field: &str) -> Result<NewRecord, ApiError> {
    let event: NewEvent = body::typed(event, field)?;
    if event.key.is_empty() || event.key.len() > MAX_KEY_BYTES || !event.key.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(invalid(format!("{field}.key"), format!("must be 1 to {MAX_KEY_BYTES} visible ASCII characters without spaces")));
    }
    if !event.kind.from_sandbox() {
        let allowed = "step, message, tool_call, tool_result, output, check_started, check_finished, note";
        return Err(invalid(format!("{field}.type"), format!("is one of the gateway's own; a sandbox may append {allowed}")));
    }
    if !event.data.is_object() {
        return Err(invalid(format!("{field}.data"), "must be an object"));
    }
    let record = NewRecord::new(event.key, event.kind, &event.data);
    if record.data.len() > MAX_DATA_BYTES {
        return Err(invalid(
            format!("{field}.data"),
            format!("has {} bytes of JSON; at most {MAX_DATA_BYTES} are allowed", record.data.len()),
        ));
    }
    Ok(record)
}

/// The gateway's own types, for tests of the refusal.
#[cfg(test)]
const OWN: [&str; 8] = ["phase", "model_call", "budget", "approval", "gap", "truncated", "result", "end"];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_bad_field_is_named() {
        let event = |key: &str, kind: &str, data: Value| json!({"events": [{"key": "ok", "type": "note", "data": {}}, {"key": key, "type": kind, "data": data}]});
        let mut rows = vec![
            (json!([]), "body"),
            (json!({"events": "x"}), "body"),
            (json!({"events": [], "more": 1}), "body"),
            (json!({"events": []}), "events"),
            (json!({"events": vec![json!({"key": "k", "type": "note", "data": {}}); 257]}), "events"),
            (json!({"events": [1]}), "events[0]"),
            (json!({"events": [{"key": "k", "type": "note"}]}), "events[0]"),
            (json!({"events": [{"key": "k", "type": "note", "data": {}, "seq": 1}]}), "events[0]"),
            (event("", "note", json!({})), "events[1].key"),
            (event(&"k".repeat(129), "note", json!({})), "events[1].key"),
            (event("a b", "note", json!({})), "events[1].key"),
            (event("a\n", "note", json!({})), "events[1].key"),
            (event("ü", "note", json!({})), "events[1].key"),
            (event("k", "nothing", json!({})), "events[1]"),
            (event("k", "note", json!("text")), "events[1].data"),
            (event("k", "note", json!({"text": "x".repeat(MAX_DATA_BYTES)})), "events[1].data"),
        ];
        rows.extend(OWN.map(|kind| (event("k", kind, json!({})), "events[1].type")));
        for (body, field) in rows {
            let error = check(body.to_string().as_bytes()).expect_err("refused");
            assert_eq!(
                (error.status.as_u16(), error.field.as_deref()),
                (422, Some(field)),
                "{error} for {}",
                &body.to_string()[..40.min(body.to_string().len())]
            );
        }
        for body in [&b"{"[..], b"", b"\xff\xfe", b"{\"events\": [nan]}"] {
            assert_eq!(check(body).expect_err("refused").code, "invalid_json");
        }
    }

    #[test]
    fn equal_bodies_are_equal_records() {
        let one = check(br#"{"events":[{"key":"k","type":"note","data":{"a":1,"b":2}}]}"#).expect("good");
        let two = check(br#"{"events":[{"data":{"b":2,  "a":1},"type":"note","key":"k"}]}"#).expect("good");
        assert_eq!(one, two);
    }
}
