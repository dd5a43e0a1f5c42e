//! What holds in every dialect, as a table over them: bytes, keys, usage, faults, refusals.

use agentrun_crds::budget::Spent;
use axum::response::IntoResponse;
use http::header::CONTENT_TYPE;

use super::upstream::{Piece, Upstream, piece, reply, stream};
use super::*;

/// One dialect: routes, bodies, and recorded answers that took 30 input and 4 output tokens.
#[derive(Clone, Copy)]
pub struct Spoken {
    pub dialect: &'static str,
    /// The client's, for JSON and for a stream.
    pub paths: [&'static str; 2],
    /// The provider's, which end so.
    pub upstream: [&'static str; 3],
    key: (&'static str, &'static str),
    /// The smallest body for JSON.
    body: &'static str,
    /// The same as the provider gets it.
    sent: &'static str,
    /// Put before the closing brace of a body that wants a stream.
    streamed: &'static str,
    pub reply: &'static str,
    pub chunk: &'static str,
    /// Usage and end of a stream, and the same without the end.
    pub tail: &'static str,
    pub endless: &'static str,
    /// The usage object of the reply, to be put out of shape, and the two numbers' names.
    pub usage: &'static str,
    pub numbers: [&'static str; 2],
}

pub const CHAT: Spoken = Spoken {
    dialect: "OpenAIChat",
    paths: ["/v1/chat/completions", "/v1/chat/completions"],
    upstream: ["/v1/chat/completions", "/v1/chat/completions", "/v1/chat/completions"],
    key: ("authorization", "Bearer "),
    body: r#"{"model":"demo","messages":[{"role":"user","content":"hello"}],"unheard_of":{"a":[1]}}"#,
    sent: r#"{"max_tokens":4096,"model":"fix-calc","messages":[{"role":"user","content":"hello"}],"unheard_of":{"a":[1]}}"#,
    streamed: r#","stream":true,"stream_options":{"include_usage":true}"#,
    reply: r#"{"choices":[{"message":{"content":"grüße"}}], "usage":{"prompt_tokens":30,"completion_tokens":4}}"#,
    chunk: "data: {\"choices\":[{\"delta\":{\"content\":\"grüße \\\"usage\\\" ✓\"}}]}\n\n",
    tail: "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":30,\"completion_tokens\":4}}\n\ndata: [DONE]\n\n",
    endless: "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":30,\"completion_tokens\":4}}\n\n",
    usage: r#""usage":{"prompt_tokens":30,"completion_tokens":4}"#,
    numbers: ["prompt_tokens", "completion_tokens"],
};

pub const MESSAGES: Spoken = Spoken {
    dialect: "AnthropicMessages",
    paths: ["/v1/messages?beta=true", "/v1/messages"],
    upstream: ["/v1/messages", "/v1/messages", "/v1/messages"],
    key: ("x-api-key", ""),
    body: r#"{"model":"demo","max_tokens":32000,"thinking":{"type":"enabled","budget_tokens":31999},"context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]},"output_config":{"effort":"high"},"messages":[{"role":"user","content":"hello"}]}"#,
    sent: r#"{"model":"fix-calc","max_tokens":4096,"thinking":{"type":"enabled","budget_tokens":4095},"context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]},"output_config":{"effort":"high"},"messages":[{"role":"user","content":"hello"}]}"#,
    streamed: r#","stream":true"#,
    reply: r#"{"type":"message","content":[{"type":"text","text":"grüße"}], "usage":{"input_tokens":10,"cache_read_input_tokens":15,"cache_creation_input_tokens":5,"output_tokens":4}}"#,
    chunk: "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"content\":[],\"usage\":{\"input_tokens\":10,\"cache_read_input_tokens\":15,\"cache_creation_input_tokens\":5,\"output_tokens\":1}}}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\nevent: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"grüße \\\"usage\\\" message_stop ✓\"}}\n\n",
    tail: "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":4}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    endless: "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":4}}\n\n",
    usage: r#""usage":{"input_tokens":10,"cache_read_input_tokens":15,"cache_creation_input_tokens":5,"output_tokens":4}"#,
    numbers: ["input_tokens", "output_tokens"],
};

pub const RESPONSES: Spoken = Spoken {
    dialect: "OpenAIResponses",
    paths: ["/v1/responses", "/v1/responses"],
    upstream: ["/v1/responses", "/v1/responses", "/v1/responses"],
    key: ("authorization", "Bearer "),
    body: r#"{"model":"demo","instructions":"x","input":"hello","include":["reasoning.encrypted_content"],"prompt_cache_key":"k","reasoning":{"effort":"low"},"client_metadata":{"a":"b"}}"#,
    sent: r#"{"store":false,"max_output_tokens":4096,"model":"fix-calc","instructions":"x","input":"hello","include":["reasoning.encrypted_content"],"prompt_cache_key":"k","reasoning":{"effort":"low"},"client_metadata":{"a":"b"}}"#,
    streamed: r#","stream":true,"store":false"#,
    reply: r#"{"object":"response","status":"completed","error":null,"output":[{"type":"message"}], "usage":{"input_tokens":30,"input_tokens_details":{"cached_tokens":15},"output_tokens":4,"output_tokens_details":{"reasoning_tokens":3},"total_tokens":34}}"#,
    chunk: "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"status\":\"in_progress\",\"error\":null,\"usage\":null}}\n\nevent: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"grüße \\\"response.completed\\\" ✓\"}\n\n",
    tail: "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\"error\":null,\"output\":[],\"usage\":{\"input_tokens\":30,\"output_tokens\":4,\"total_tokens\":34}}}\n\n",
    endless: "event: response.output_text.done\ndata: {\"type\":\"response.output_text.done\",\"text\":\"x\"}\n\n",
    usage: r#""usage":{"input_tokens":30,"input_tokens_details":{"cached_tokens":15},"output_tokens":4,"output_tokens_details":{"reasoning_tokens":3},"total_tokens":34}"#,
    numbers: ["input_tokens", "output_tokens"],
};

pub const GEMINI: Spoken = Spoken {
    dialect: "Gemini",
    paths: ["/v1beta/models/demo:generateContent", "/v1beta/models/demo:streamGenerateContent?alt=sse"],
    upstream: ["/v1beta/models", "/v1beta/models/fix-calc:generateContent", "/v1beta/models/fix-calc:streamGenerateContent?alt=sse"],
    key: ("x-goog-api-key", ""),
    body: r#"{"contents":[{"role":"user","parts":[{"text":"hello"}]}],"generationConfig":{"temperature":0,"thinkingConfig":{"thinkingBudget":-1}},"unheardOf":1}"#,
    sent: r#"{"contents":[{"role":"user","parts":[{"text":"hello"}]}],"generationConfig":{"maxOutputTokens":4096,"temperature":0,"thinkingConfig":{"thinkingBudget":-1}},"unheardOf":1}"#,
    streamed: "",
    reply: r#"{"candidates":[{"content":{"parts":[{"text":"grüße"}]},"finishReason":"STOP"}], "usageMetadata":{"promptTokenCount":30,"cachedContentTokenCount":15,"candidatesTokenCount":1,"thoughtsTokenCount":3,"totalTokenCount":34}}"#,
    chunk: "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"grüße finishReason ✓\"}]}}],\"usageMetadata\":{\"promptTokenCount\":30,\"totalTokenCount\":30}}\n\n",
    tail: "data: {\"candidates\":[{\"content\":{\"parts\":[]},\"finishReason\":\"STOP\"}],\"usageMetadata\":{\"promptTokenCount\":30,\"candidatesTokenCount\":4,\"totalTokenCount\":34}}\n\n",
    endless: "data: {\"candidates\":[{\"content\":{\"parts\":[]}}],\"usageMetadata\":{\"promptTokenCount\":30,\"candidatesTokenCount\":4,\"totalTokenCount\":34}}\n\n",
    usage: r#""usageMetadata":{"promptTokenCount":30,"cachedContentTokenCount":15,"candidatesTokenCount":1,"thoughtsTokenCount":3,"totalTokenCount":34}"#,
    numbers: ["promptTokenCount", "candidatesTokenCount"],
};

pub const ALL: [Spoken; 4] = [CHAT, MESSAGES, RESPONSES, GEMINI];

/// Charged at the reservation: 4,096 output tokens.
pub const FULL: i64 = 4096;

impl Spoken {
    pub async fn world(self, upstream: Upstream) -> World {
        self.world_with(run_json(), upstream).await
    }

    pub async fn world_with(self, mut run: Value, upstream: Upstream) -> World {
        run["status"]["resolved"]["model"]["dialect"] = json!(self.dialect);
        let world = World::with(run, upstream).await;
        world.gateway.state.model.providers.put(self.provider("scripted", &world.upstream));
        world
    }

    pub fn provider(self, name: &str, upstream: &Upstream) -> ModelProvider {
        self.provider_at(name, &upstream.url_of(self.upstream[0]))
    }

    pub fn provider_at(self, name: &str, url: &str) -> ModelProvider {
        let mut provider = provider(url);
        provider.metadata.name = Some(name.into());
        provider.spec.dialect = serde_json::from_value(json!(self.dialect)).unwrap();
        provider
    }

    pub fn body(self, streamed: bool) -> String {
        let body = self.body.strip_suffix('}').unwrap();
        format!("{body}{}}}", if streamed { self.streamed } else { "" })
    }

    pub async fn send(self, world: &World, streamed: bool) -> Response {
        self.post(world, self.paths[usize::from(streamed)], self.body(streamed)).await
    }

    pub async fn post(self, world: &World, path: &str, body: String) -> Response {
        let request = Request::post(path).header(self.key.0, format!("{}{}", self.key.1, model_token()));
        let request = request.header("content-type", "application/json").header("x-secret-of-the-sandbox", "must not travel");
        world.gateway.sandbox.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap()
    }

    pub fn good(self) -> Response {
        reply(self.reply)
    }

    /// Our code in a refusal, which is where the dialect's clients look for a word.
    pub fn code(self, body: &str) -> String {
        let value: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("no JSON: {body}"));
        let error = &value["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
        let code = match self.dialect {
            "Gemini" => {
                assert!(error["code"].is_u64() && error["status"].is_string(), "{body}");
                &error["details"][0]["reason"]
            }
            "AnthropicMessages" => {
                assert_eq!(value["type"], "error", "{body}");
                assert!(error["type"].is_string(), "{body}");
                &error["code"]
            }
            _ => &error["code"],
        };
        code.as_str().unwrap_or_default().to_owned()
    }

    /// The code in the event that ends a stream.
    pub fn last_code(self, body: &str) -> String {
        let last = body.trim_end().rsplit("\n\n").next().unwrap();
        let (event, data) = last.split_once("data: ").unwrap_or_else(|| panic!("{body}"));
        match self.dialect {
            "OpenAIResponses" => {
                assert_eq!(event, "event: response.failed\n");
                let value: Value = serde_json::from_str(data).unwrap();
                value["response"]["error"]["code"].as_str().unwrap().to_owned()
            }
            "AnthropicMessages" => {
                assert_eq!(event, "event: error\n");
                self.code(data)
            }
            _ => self.code(data),
        }
    }
}

#[tokio::test]
async fn a_call_is_forwarded_with_our_key_and_metered_by_the_dialects_own_fields() {
    for spoken in ALL {
        let name = spoken.dialect;
        let mut run = run_json();
        run["status"]["resolved"]["model"]["cachedInputMicrosPerMillion"] = json!(100_000);
        run["status"]["resolved"]["model"]["cacheWriteMicrosPerMillion"] = json!(3_000_000);
        let world = spoken.world_with(run, Upstream::new(move |_, _| spoken.good()).await).await;
        let response = spoken.send(&world, false).await;
        assert_eq!((response.status().as_u16(), response.headers()["content-type"].to_str().unwrap()), (200, "application/json"), "{name}");
        assert_eq!(text(response).await, spoken.reply, "{name}: bytes pass unchanged");

        let (headers, body) = world.upstream.seen().remove(0);
        let mut expected = vec!["accept", "accept-encoding", "content-length", "content-type", "host", "user-agent", spoken.key.0];
        if spoken.dialect == "AnthropicMessages" {
            expected.push("anthropic-version");
        }
        expected.sort_unstable();
        let mut names: Vec<&str> = headers.keys().map(http::HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, expected, "{name}");
        assert_eq!(headers[spoken.key.0], format!("{}{KEY}", spoken.key.1), "{name}");
        assert_eq!(world.upstream.paths(), [spoken.upstream[1]], "{name}");
        assert_eq!(std::str::from_utf8(&body).unwrap(), spoken.sent, "{name}");

        let spent = world.settled().await.spent;
        assert_eq!((spent.requests, spent.upstream_attempts, spent.input_tokens, spent.output_tokens), (1, 1, 30, 4), "{name}");
        // Plain input at 1, cached at 0.1, written at 3, output at 2.
        let cost = match spoken.dialect {
            "OpenAIChat" => 30 + 8,
            "AnthropicMessages" => 10 + 15 + 2 + 8, // 1.5 rounded up
            _ => 15 + 2 + 8,
        };
        assert_eq!(spent.cost_micros, cost, "{name}");
    }
}

#[tokio::test]
async fn a_stream_passes_byte_for_byte_wherever_it_is_cut() {
    for spoken in ALL {
        let name = spoken.dialect;
        let whole = format!("{}{}", spoken.chunk, spoken.tail);
        for step in [1, 7, 64, whole.len()] {
            let cut = whole.clone();
            let pieces = move || cut.as_bytes().chunks(step).map(|bytes| Piece::Bytes(bytes.to_vec())).collect();
            let world = spoken.world(Upstream::new(move |_, _| stream(pieces())).await).await;
            let response = spoken.send(&world, true).await;
            let media = response.headers()["content-type"].to_str().unwrap().to_owned();
            assert_eq!((response.status().as_u16(), media.as_str()), (200, "text/event-stream"), "{name}");
            assert_eq!(all(response).await, (whole.clone(), true), "{name} in pieces of {step}");
            assert_eq!(world.upstream.paths(), [spoken.upstream[2]], "{name}");
            let spent = world.settled().await.spent;
            assert_eq!((spent.requests, spent.input_tokens, spent.output_tokens), (1, 30, 4), "{name}");
        }
    }
}

#[tokio::test]
async fn a_stream_of_gemini_can_also_be_one_array() {
    let data = |event: &str| event.trim_end().strip_prefix("data: ").unwrap().to_owned();
    let path = "/v1beta/models/demo:streamGenerateContent";
    let world = GEMINI.world(Upstream::new(|_, _| stream(vec![piece(GEMINI.chunk), piece(GEMINI.tail)])).await).await;
    let response = GEMINI.post(&world, path, GEMINI.body(true)).await;
    assert_eq!(response.headers()["content-type"], "application/json");
    let (body, clean) = all(response).await;
    assert_eq!((body.clone(), clean), (format!("[{},\r\n{}]\r\n", data(GEMINI.chunk), data(GEMINI.tail)), true));
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap().as_array().unwrap().len(), 2);
    assert_eq!(world.settled().await.spent.output_tokens, 4);

    let world = GEMINI.world(Upstream::new(|_, _| stream(vec![piece(GEMINI.chunk), Piece::Break])).await).await;
    let (body, clean) = all(GEMINI.post(&world, path, GEMINI.body(true)).await).await;
    assert!(!clean);
    let value: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(value[1]["error"]["details"][0]["reason"], "provider_stream_incomplete");
    assert_eq!(world.settled().await.spent.output_tokens, FULL);
}

/// What has to do with the connection, and the rest of what a provider may refuse: `wire`.
#[tokio::test]
async fn every_answer_that_is_none_is_refused_in_the_dialects_own_form() {
    type Answer = fn(Spoken) -> axum::response::Response;
    let status = |status: u16| move |_: Spoken| super::upstream::error(status);
    let html: Answer = |_| ([(CONTENT_TYPE, "text/html")], "<p>").into_response();
    // answer, status, code, upstream attempts, output tokens
    type Boxed = Box<dyn Fn(Spoken) -> axum::response::Response + Send + Sync>;
    let rows: Vec<(&str, Boxed, u16, &str, i64, i64)> = vec![
        ("401", Box::new(status(401)), 502, "provider_auth_failed", 1, 0),
        ("400", Box::new(status(400)), 400, "provider_rejected_request", 1, 0),
        ("404", Box::new(status(404)), 502, "provider_misconfigured", 1, 0),
        ("html", Box::new(html), 502, "provider_response_invalid", 1, FULL),
        ("no JSON", Box::new(|_| reply("{\"choices\":[")), 502, "provider_response_invalid", 1, FULL),
        (
            "another dialect's",
            Box::new(|spoken| reply(if spoken.dialect == "Gemini" { CHAT.reply } else { GEMINI.reply })),
            502,
            "provider_response_invalid",
            1,
            FULL,
        ),
        ("too large", Box::new(|_| reply(&format!("{{\"x\":\"{}\"}}", "x".repeat(20_000)))), 502, "provider_response_too_large", 1, FULL),
    ];
    for (name, answer, status, code, attempts, output) in rows {
        let answer = std::sync::Arc::new(answer);
        for spoken in ALL {
            let name = format!("{name} {}", spoken.dialect);
            let answer = answer.clone();
            let world = spoken.world(Upstream::new(move |_, _| answer(spoken)).await).await;
            let response = spoken.send(&world, false).await;
            assert_eq!(response.status().as_u16(), status, "{name}");
            let body = text(response).await;
            assert_eq!(spoken.code(&body), code, "{name}");
            assert!(!body.contains(KEY) && !body.contains("provider.example"), "{name}: {body}");
            let Spent { requests, upstream_attempts, output_tokens, .. } = world.settled().await.spent;
            assert_eq!((requests, upstream_attempts, output_tokens), (1, attempts, output), "{name}");
        }
    }
}

#[tokio::test]
async fn every_way_a_stream_may_break_is_an_error_for_the_client_too() {
    for spoken in ALL {
        let error = match spoken.dialect {
            "AnthropicMessages" => {
                "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"sk-canary-key\"}}\n\n"
            }
            "OpenAIResponses" => {
                "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{\"message\":\"sk-canary-key\"}}}\n\n"
            }
            _ => "data: {\"error\":{\"message\":\"sk-canary-key\"}}\n\n",
        };
        let chunk = piece(spoken.chunk);
        let rows: Vec<(&str, Vec<Piece>, &str)> = vec![
            ("cut", vec![chunk.clone(), Piece::Break], "provider_stream_incomplete"),
            ("ends without its terminal event", vec![chunk.clone(), piece(spoken.endless)], "provider_stream_incomplete"),
            ("ends in an event", vec![chunk.clone(), piece(spoken.tail.trim_end())], "provider_stream_incomplete"),
            ("goes silent", vec![chunk.clone(), Piece::Hang], "provider_timeout"),
            ("reports an error", vec![chunk.clone(), piece(error), Piece::Hang], "provider_unavailable"),
            ("never ends", std::iter::repeat_n(chunk.clone(), 400).collect(), "provider_response_too_large"),
        ];
        for (name, pieces, expected) in rows {
            let name = format!("{name} {}", spoken.dialect);
            let world = spoken.world(Upstream::new(move |_, _| stream(pieces.clone())).await).await;
            let response = spoken.send(&world, true).await;
            assert_eq!(response.status(), 200, "{name}");
            let (body, clean) = all(response).await;
            assert!(!clean, "{name}: a broken stream must not look like a whole one");
            assert!(body.starts_with(spoken.chunk) && !body.contains(KEY), "{name}: {body}");
            assert!(
                ["[DONE]", "\"message_stop\"", "\"type\":\"response.completed\"", "\"STOP\""].iter().all(|end| !body.contains(end)),
                "{name}: {body}"
            );
            assert_eq!(spoken.last_code(&body), expected, "{name}");
            let spent = world.settled().await.spent;
            assert_eq!((spent.requests, spent.output_tokens), (1, FULL), "{name}: never less than the reservation");
        }
    }
}

#[tokio::test]
async fn refusals_are_in_the_dialects_own_form_and_say_whether_to_come_back() {
    for spoken in ALL {
        let name = spoken.dialect;
        let world = spoken.world(Upstream::new(move |_, _| spoken.good()).await).await;
        let bare = Request::post(spoken.paths[0]).body(Body::from(spoken.body(false))).unwrap();
        let response = world.gateway.sandbox.clone().oneshot(bare).await.unwrap();
        assert_eq!((response.status().as_u16(), response.headers()["x-should-retry"].to_str().unwrap()), (401, "false"), "{name}");
        assert_eq!(spoken.code(&text(response).await), "inactive_run_token", "{name}");

        for (body, status, code) in [
            ("{".to_owned(), 400, "malformed_body"),
            ("[]".to_owned(), 400, "invalid_body"),
            (format!("{}{}", "[".repeat(10_000), "]".repeat(10_000)), 400, "malformed_body"),
            (spoken.body(false).replacen('{', "{\"stream\":false,\"stream\":true,", 1), 400, "duplicate_field"),
            ("x".repeat(20_001), 413, "too_large"),
        ] {
            let response = spoken.post(&world, spoken.paths[0], body.clone()).await;
            assert_eq!(response.status().as_u16(), status, "{name} {body:.60}");
            assert_eq!(spoken.code(&text(response).await), code, "{name} {body:.60}");
        }
        for other in ALL.into_iter().filter(|other| other.dialect != spoken.dialect) {
            let response = other.send(&world, false).await;
            assert_eq!((response.status().as_u16(), response.headers()["x-should-retry"].to_str().unwrap()), (400, "false"), "{name}");
            let body = text(response).await;
            assert_eq!(other.code(&body), "wrong_dialect", "{name}");
            assert!(body.contains(spoken.dialect), "{body}");
        }
        assert_eq!((world.api.lock().writes, world.upstream.seen().len()), (0, 0), "{name}");

        let mut run = run_json();
        run["status"]["budget"]["spent"]["requests"] = json!(10);
        let world = spoken.world_with(run, Upstream::new(move |_, _| spoken.good()).await).await;
        let response = spoken.send(&world, true).await;
        let expected = if spoken.dialect == "OpenAIResponses" { 429 } else { 403 };
        assert_eq!((response.status().as_u16(), response.headers()["x-should-retry"].to_str().unwrap()), (expected, "false"), "{name}");
        assert_eq!(spoken.code(&text(response).await), "model_request_budget_exhausted", "{name}");
        world.settled().await;
    }
}

#[tokio::test]
async fn counting_tokens_is_forwarded_and_costs_nothing() {
    for (spoken, path, upstream, answer, body) in [
        (
            MESSAGES,
            "/v1/messages/count_tokens?beta=true",
            "/v1/messages/count_tokens",
            r#"{"input_tokens":14}"#,
            r#"{"model":"demo","messages":[{"role":"user","content":"hello"}]}"#,
        ),
        (
            GEMINI,
            "/v1beta/models/demo:countTokens",
            "/v1beta/models/fix-calc:countTokens",
            r#"{"totalTokens":14}"#,
            r#"{"contents":[{"parts":[{"text":"hello"}]}]}"#,
        ),
    ] {
        let mut run = run_json();
        run["status"]["budget"]["limit"]["requests"] = json!(0);
        let world = spoken.world_with(run, Upstream::new(move |_, _| reply(answer)).await).await;
        let response = spoken.post(&world, path, body.into()).await;
        assert_eq!((response.status().as_u16(), text(response).await.as_str()), (200, answer));
        assert_eq!(world.upstream.paths(), [upstream]);
        assert_eq!(world.upstream.seen()[0].1, body.replace("demo", "fix-calc"));
        let spent = world.settled().await.spent;
        assert_eq!(Spent { upstream_attempts: 0, ..spent }, Spent::default());
        assert!(world.gateway.events.0.lock().unwrap().is_empty(), "what costs nothing is no event");
    }
}

#[tokio::test]
async fn embeddings_are_those_that_the_policy_offers_beside_the_model() {
    let body = r#"{"model":"embed","input":["one","two"]}"#;
    let answer = r#"{"object":"list","data":[{"embedding":[0.5]}],"usage":{"prompt_tokens":8,"total_tokens":8}}"#;
    let world = CHAT.world(Upstream::new(move |_, _| reply(answer)).await).await;
    let response = CHAT.post(&world, "/v1/embeddings", body.into()).await;
    assert_eq!((response.status().as_u16(), CHAT.code(&text(response).await).as_str()), (400, "wrong_dialect"));

    let mut run = run_json();
    run["status"]["resolved"]["embeddings"] = json!({
        "name": "embed", "provider": "vectors", "dialect": "OpenAIEmbeddings", "model": "up", "maxOutputTokens": 1,
        "inputMicrosPerMillion": 5_000_000, "outputMicrosPerMillion": 0,
    });
    let world = CHAT.world_with(run, Upstream::new(move |_, _| reply(answer)).await).await;
    let mut vectors = CHAT.provider("vectors", &world.upstream);
    vectors.spec.dialect = agentrun_crds::model_provider::Dialect::OpenAIEmbeddings;
    world.gateway.state.model.providers.put(vectors);
    let response = CHAT.post(&world, "/v1/embeddings", body.into()).await;
    assert_eq!((response.status().as_u16(), text(response).await.as_str()), (200, answer));
    assert_eq!(world.upstream.seen()[0].1, r#"{"model":"up","input":["one","two"]}"#);
    let spent = world.settled().await.spent;
    assert_eq!((spent.requests, spent.input_tokens, spent.output_tokens, spent.cost_micros), (1, 8, 0, 40));
}

#[tokio::test]
async fn the_models_that_a_run_may_use_are_listed() {
    let mut run = run_json();
    run["status"]["resolved"]["embeddings"] =
        json!({ "name": "a/embed", "provider": "vectors", "dialect": "OpenAIEmbeddings", "model": "up", "maxOutputTokens": 1 });
    let world = CHAT.world_with(run, Upstream::new(move |_, _| CHAT.good()).await).await;
    let get = async |path: &str| {
        let request = Request::get(path).header("x-goog-api-key", model_token()).body(Body::empty()).unwrap();
        let response = world.gateway.sandbox.clone().oneshot(request).await.unwrap();
        (response.status().as_u16(), serde_json::from_str::<Value>(&text(response).await).unwrap())
    };
    let (status, list) = get("/v1/models").await;
    let ids: Vec<&str> = list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!((status, ids, &list["has_more"]), (200, vec!["demo", "a/embed"], &json!(false)));
    assert_eq!(get("/v1beta/models").await.1["models"][0]["name"], "models/demo");
    assert_eq!(get("/v1/models/a%2Fembed").await.1["id"], "a/embed");
    assert_eq!(get("/v1beta/models/demo").await.1["outputTokenLimit"], 4096);
    assert_eq!(get("/v1/models/other").await.0, 404);
    assert_eq!(get("/v1beta/models/other").await.1["error"]["status"], "NOT_FOUND");
    assert_eq!(world.upstream.seen().len(), 0);
}

#[tokio::test]
async fn the_scripted_model_speaks_each_of_them() {
    let scripted =
        agentrun_scripted_model::Running::start(agentrun_scripted_model::Options { key: Some(KEY.into()), ..Default::default() })
            .await
            .unwrap();
    for spoken in ALL {
        let name = spoken.dialect;
        let mut run = run_json();
        run["status"]["resolved"]["model"]["model"] = json!("echo");
        let world = spoken.world_with(run, Upstream::new(|_, _| reply("{}")).await).await;
        let mut provider = spoken.provider("scripted", &world.upstream);
        provider.spec.url = format!("{}{}", scripted.url, spoken.upstream[0]);
        world.gateway.state.model.providers.put(provider);
        let response = spoken.send(&world, false).await;
        let status = response.status();
        let body = text(response).await;
        assert!(status == 200 && body.contains("Nothing to do."), "{name}: {body}");
        let (stream, clean) = all(spoken.send(&world, true).await).await;
        assert!(clean && stream.contains("Nothing"), "{name}: {stream}");
        let spent = world.settled().await.spent;
        assert_eq!(spent.requests, 2, "{name}");
        assert!(spent.output_tokens > 0 && spent.output_tokens < 100, "{name}: {spent:?}");
    }
}
