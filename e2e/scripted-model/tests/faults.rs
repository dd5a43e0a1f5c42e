//! The server over a real socket: right answers, each fault as a client sees it, and the bill.

use agentrun_scripted_model::{FaultKind, Options, Running, Script, Turn, Usage, request_body};
use serde_json::{Value, json};

const KEY: &str = "the-key";

async fn start(turns: impl IntoIterator<Item = Turn>) -> Running {
    Running::start(Options { scripts: vec![Script::new("t", turns)], key: Some(KEY.into()) }).await.expect("a loopback port")
}

fn client() -> reqwest::Client {
    reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().expect("a plain client")
}

async fn post(server: &Running, body: &Value) -> reqwest::Response {
    client().post(server.completions()).bearer_auth(KEY).json(body).send().await.expect("an answer")
}

#[tokio::test]
async fn the_built_in_script_runs_from_the_first_to_the_last_turn() {
    let server = Running::start(Options::default()).await.unwrap();
    let mut messages = vec![json!({"role": "system", "content": "s"}), json!({"role": "user", "content": "fix it"})];
    let mut tools = Vec::new();
    loop {
        let answer: Value = post(&server, &json!({"model": "scripted-small", "messages": messages})).await.json().await.unwrap();
        let message = answer["choices"][0]["message"].clone();
        messages.push(message.clone());
        let Some(calls) = message["tool_calls"].as_array() else { break };
        for call in calls {
            tools.push(call["function"]["name"].as_str().unwrap().to_owned());
            messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "ok"}));
        }
    }
    assert_eq!(tools, ["list", "read_file", "run_command", "edit_file", "run_command"]);
    let bill = server.model.bill()["scripted-small"];
    assert_eq!((bill.requests, bill.finished), (6, 6));
    assert!(bill.prompt_tokens > 0 && bill.completion_tokens > 0);
}

#[tokio::test]
async fn each_fault_is_what_a_client_sees() {
    let server = start([Turn::say("hello, this is long enough for several chunks of a stream")]).await;
    let whole = post(&server, &request_body("t", "x", true)).await.text().await.unwrap();
    assert!(whole.ends_with("data: [DONE]\n\n"));
    assert!(!whole.contains("usage"), "usage was not asked for");

    let set = |turn: Turn| server.model.register(Script::new("t", [turn])).unwrap();
    for (kind, stream, expected) in [
        (FaultKind::Cut { after_chunks: 2 }, true, Err(())),
        (FaultKind::Cut { after_chunks: 1 }, false, Err(())),
        (FaultKind::NoDone, true, Ok((200, false))),
        (FaultKind::Malformed, false, Ok((200, false))),
        (FaultKind::Slow { ms_per_chunk: 1 }, true, Ok((200, true))),
        (FaultKind::DelayHeader { ms: 1 }, true, Ok((200, true))),
        (FaultKind::Redirect { location: "http://127.0.0.1:1/".into() }, true, Ok((307, false))),
        (FaultKind::Status { code: 503, retry_after: None, echo_key: false }, true, Ok((503, false))),
    ] {
        set(Turn::say("hello, this is long enough").with(kind.clone()));
        let response = post(&server, &request_body("t", "x", stream)).await;
        let status = response.status().as_u16();
        let body = response.text().await.map_err(|_| ());
        assert_eq!(body.map(|body| (status, body.contains("[DONE]"))), expected, "{kind:?}");
    }

    set(Turn::say("hello").with(FaultKind::HugeBody { bytes: 3_000_000 }));
    for stream in [true, false] {
        let body = post(&server, &request_body("t", "x", stream)).await.text().await.unwrap();
        assert!(body.len() > 3_000_000 && body.contains("hello"));
        if !stream {
            serde_json::from_str::<Value>(&body).unwrap();
        }
    }

    set(Turn::say("x").with(FaultKind::Endless { ms_per_chunk: 0 }));
    let mut response = post(&server, &request_body("t", "x", true)).await;
    let mut received = 0;
    while received < 1_000_000 {
        received += response.chunk().await.unwrap().unwrap().len();
    }
}

#[tokio::test]
async fn a_fault_of_the_first_tries_ends_and_the_bill_says_so() {
    let fault = FaultKind::Status { code: 429, retry_after: Some("1".into()), echo_key: true };
    let server =
        start([Turn::say("done").with_first(2, fault).with_usage(Usage::Raw(json!({"prompt_tokens": 7, "completion_tokens": 3})))]).await;
    for expected in [429, 429, 200, 200] {
        let response = post(&server, &request_body("t", "x", false)).await;
        assert_eq!(response.status().as_u16(), expected);
        assert_eq!(response.headers().contains_key("retry-after"), expected == 429);
        assert_eq!(response.text().await.unwrap().contains(KEY), expected == 429);
    }
    // Another conversation has tries of its own.
    assert_eq!(post(&server, &request_body("t", "y", false)).await.status().as_u16(), 429);
    let line = server.model.bill()["t"];
    assert_eq!((line.requests, line.failed, line.prompt_tokens, line.completion_tokens), (5, 3, 14, 6));
}

#[tokio::test]
async fn keys_models_and_bodies_are_checked_and_kept_for_assertions() {
    let server = start([Turn::say("x")]).await;
    let send = async |key: Option<&str>, body: String| {
        let mut request = client().post(server.completions()).body(body);
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        request.send().await.unwrap().status().as_u16()
    };
    let good = request_body("t", "x", false).to_string();
    assert_eq!(send(None, good.clone()).await, 401);
    assert_eq!(send(Some("wrong"), good.clone()).await, 401);
    assert_eq!(send(Some(KEY), "{".into()).await, 400);
    assert_eq!(send(Some(KEY), request_body("unknown", "x", false).to_string()).await, 404);
    assert_eq!(send(Some(KEY), request_body("unknown", "[script:t] x", false).to_string()).await, 200);
    assert_eq!(send(Some(KEY), good).await, 200);

    let seen = server.model.seen(Some("t"));
    assert_eq!(seen.len(), 3);
    assert!(seen.last().unwrap().headers.contains(&("authorization".into(), format!("Bearer {KEY}"))));
    assert_eq!(server.model.bill()["t"].unauthorized, 2);

    let script = Script { key: Some("own".into()), ..Script::new("late", [Turn::say("y")]) };
    let registered = client().post(format!("{}/__script", server.url)).json(&script).send().await.unwrap();
    assert_eq!(registered.status().as_u16(), 204);
    assert_eq!(send(Some(KEY), request_body("scripted/late", "x", false).to_string()).await, 401);
    assert_eq!(send(Some("own"), request_body("scripted/late", "x", false).to_string()).await, 200);
}

#[tokio::test]
async fn a_wait_ends_when_the_request_comes() {
    let server = start([Turn::say("x")]).await;
    let waiting = tokio::spawn(client().get(format!("{}/__wait?model=t&requests=2", server.url)).send());
    post(&server, &request_body("t", "x", false)).await;
    assert!(!waiting.is_finished());
    post(&server, &request_body("t", "y", false)).await;
    assert_eq!(waiting.await.unwrap().unwrap().status().as_u16(), 204);
}
