//! What is refused, what is spliced, and that nothing else of a body changes.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::model::json::JsonError;

fn parse(text: &str) -> Result<Call, BodyError> {
    Call::parse(Operation::Chat, Bytes::copy_from_slice(text.as_bytes()), "demo")
}

#[test]
fn only_model_output_and_usage_are_spliced() {
    for (body, expected) in [
        (r#"{"model":"demo","messages":[{}]}"#, r#"{"max_tokens":7,"model":"up/\"x\"","messages":[{}]}"#),
        (r#" { "max_tokens" : 99 , "model":"demo","messages":[{}] } "#, r#" { "max_tokens" : 7 , "model":"up/\"x\"","messages":[{}] } "#),
        (
            r#"{"max_completion_tokens":null,"max_tokens":5,"messages":[{}],"model":"\u0064emo"}"#,
            r#"{"max_completion_tokens":7,"max_tokens":7,"messages":[{}],"model":"up/\"x\""}"#,
        ),
        (
            r#"{"model":"demo","messages":[{}],"stream":true,"max_tokens":1}"#,
            r#"{"stream_options":{"include_usage":true},"model":"up/\"x\"","messages":[{}],"stream":true,"max_tokens":7}"#,
        ),
        (
            r#"{"model":"demo","messages":[{}],"stream":true,"max_tokens":1,"stream_options":null}"#,
            r#"{"model":"up/\"x\"","messages":[{}],"stream":true,"max_tokens":7,"stream_options":{"include_usage":true}}"#,
        ),
        (
            r#"{"model":"demo","messages":[{}],"stream":true,"max_tokens":1,"stream_options":{}}"#,
            r#"{"model":"up/\"x\"","messages":[{}],"stream":true,"max_tokens":7,"stream_options":{"include_usage":true}}"#,
        ),
        (
            r#"{"model":"demo","messages":[{}],"stream":true,"max_tokens":1,"stream_options":{"include_usage":false}}"#,
            r#"{"model":"up/\"x\"","messages":[{}],"stream":true,"max_tokens":7,"stream_options":{"include_usage":true}}"#,
        ),
        (
            r#"{"model":"demo","messages":[{}],"stream":true,"max_tokens":1,"stream_options":{"include_obfuscation":false}}"#,
            r#"{"model":"up/\"x\"","messages":[{}],"stream":true,"max_tokens":7,"stream_options":{"include_usage":true,"include_obfuscation":false}}"#,
        ),
    ] {
        assert_eq!(parse(body).unwrap().render("up/\"x\"", OutputLimit::MaxTokens, 7), expected.as_bytes(), "{body}");
    }
}

#[test]
fn a_chat_without_a_bound_gets_the_member_that_its_model_takes() {
    let render = |body: &str| parse(body).unwrap().render("up", OutputLimit::MaxCompletionTokens, 7);
    let without = render(r#"{"model":"demo","messages":[{}]}"#);
    assert_eq!(without, r#"{"max_completion_tokens":7,"model":"up","messages":[{}]}"#);
    let with = render(r#"{"model":"demo","messages":[{}],"max_tokens":9}"#);
    assert_eq!(with, r#"{"model":"up","messages":[{}],"max_tokens":7}"#, "what the caller chose stays");
}

#[test]
fn what_the_body_does_not_show_is_refused_with_its_field() {
    let with = |extra: &str| format!(r#"{{"model":"demo","messages":[{{"role":"user","content":"x"}}],{extra}}}"#);
    let message = |content: &str| format!(r#"{{"model":"demo","messages":[{{"role":"user","content":{content}}}]}}"#);
    for (body, code, name) in [
        (with(r#""n":2"#), "unsupported_value", "n"),
        (with(r#""n":1.0"#), "unsupported_value", "n"),
        (with(r#""store":true"#), "unsupported_value", "store"),
        (with(r#""modalities":["text","audio"]"#), "unsupported_value", "modalities"),
        (with(r#""audio":{"voice":"x"}"#), "unsupported_field", "audio"),
        (with(r#""previous_response_id":"r""#), "unsupported_field", "previous_response_id"),
        (with(r#""web_search_options":{}"#), "unsupported_field", "web_search_options"),
        (with(r#""models":["a","b"]"#), "unsupported_field", "models"),
        (with(r#""plugins":[]"#), "unsupported_field", "plugins"),
        (with(r#""service_tier":"priority""#), "unsupported_value", "service_tier"),
        (with(r#""n_predict":99999"#), "unsupported_field", "n_predict"),
        (with(r#""webSearchOptions":{}"#), "unsupported_field", "webSearchOptions"),
        (message(r#"[{"type":"text","text":"x","image_url":"u"}]"#), "unsupported_field", "messages[0].content[0].image_url"),
        (with(r#""prediction":{}"#), "unsupported_field", "prediction"),
        (with(r#""tools":[{"type":"web_search"}]"#), "unsupported_tool", "tools[0].type"),
        (with(r#""tools":[{"type":"function"},{}]"#), "unsupported_tool", "tools[1].type"),
        (with(r#""tools":[{"type":"function","type":"web_search"}]"#), "duplicate_field", "tools[0].type"),
        (with(r#""tools":{}"#), "invalid_field", "tools"),
        (with(r#""max_tokens":0"#), "invalid_field", "max_tokens"),
        (with(r#""max_tokens":-1"#), "invalid_field", "max_tokens"),
        (with(r#""max_tokens":1e9"#), "invalid_field", "max_tokens"),
        (with(r#""max_completion_tokens":"9""#), "invalid_field", "max_completion_tokens"),
        (with(r#""stream":1"#), "invalid_field", "stream"),
        (with(r#""stream_options":{}"#), "invalid_field", "stream_options"),
        (with(r#""stream":true,"stream_options":[]"#), "invalid_field", "stream_options"),
        (with(r#""stream":true,"stream_options":{"include_usage":1}"#), "invalid_field", "stream_options.include_usage"),
        (with(r#""stream":true,"stream_options":{"includeUsage":1}"#), "unsupported_field", "includeUsage"),
        (with(r#""model":"demo""#), "duplicate_field", "body.model"),
        (with(r#""Model":"demo""#), "duplicate_field", "body.Model"),
        (with(r#""\u006dodel":"demo""#), "duplicate_field", "body.model"),
        (with(r#""MAX_TOKENS":1"#), "unsupported_field", "MAX_TOKENS"),
        (message(r#"[{"type":"image_url","image_url":{"url":"https://x"}}]"#), "unsupported_content", "messages[0].content[0]"),
        (
            message(r#"[{"type":"text","text":"x"},{"type":"file","file":{"file_id":"f"}}]"#),
            "unsupported_content",
            "messages[0].content[1]",
        ),
        (message(r#"[{"type":"text","type":"image_url"}]"#), "duplicate_field", "messages[0].content[0].type"),
        (message(r#"[{"type":"text","text":"x","image_url":{}}]"#), "unsupported_field", "messages[0].content[0].image_url"),
        (message(r#"[7]"#), "unsupported_content", "messages[0].content[0]"),
        (message(r#"{"type":"image_url"}"#), "invalid_field", "messages[0].content"),
        (message(r#""x","Content":[{"type":"image_url"}]"#), "duplicate_field", "messages[0].Content"),
        (message(r#""x","audio":{"id":"a"}"#), "unsupported_field", "messages[0].audio"),
        (r#"{"model":"demo"}"#.into(), "missing_field", "messages"),
        (r#"{"model":"demo","messages":[]}"#.into(), "invalid_field", "messages"),
        (r#"{"model":"demo","messages":{}}"#.into(), "invalid_field", "messages"),
        (r#"{"model":"demo","messages":["x"]}"#.into(), "invalid_field", "messages[0]"),
        (r#"{"messages":[{}]}"#.into(), "missing_field", "model"),
        ("[]".into(), "invalid_body", "body"),
    ] {
        match parse(&body) {
            Err(BodyError::Field { code: got, field, .. }) => assert_eq!((got, &*field), (code, name), "{body}"),
            other => panic!("{body}: {other:?}"),
        }
    }
    assert!(matches!(parse("{"), Err(BodyError::Malformed(JsonError::Truncated))));
    for body in [r#"{"model":"other","messages":[{}]}"#, r#"{"model":null,"messages":[{}]}"#, r#"{"model":["demo"],"messages":[{}]}"#] {
        assert_eq!(parse(body).err(), Some(BodyError::WrongModel("demo".into())), "{body}");
    }
    for good in [with(r#""web_search_options":null"#), with(r#""n":1,"store":false,"modalities":["text"],"tools":null"#), message("null")] {
        assert!(parse(&good).is_ok(), "{good}");
    }
}

fn body() -> impl Strategy<Value = (Value, bool)> {
    let text = ".{0,40}";
    let messages = prop::collection::vec((text, prop::option::of(prop::collection::vec(text, 0..3))), 1..5).prop_map(|rows| {
        rows.into_iter()
            .map(|(plain, parts)| match parts {
                None => json!({"role": "user", "content": plain}),
                Some(parts) => {
                    json!({"role": "user", "content": parts.into_iter().map(|t| json!({"type": "text", "text": t})).collect::<Vec<_>>()})
                }
            })
            .collect::<Value>()
    });
    let limit = prop::option::of(prop_oneof![Just(Value::Null), (1i64..100_000).prop_map(Value::from)]);
    let options = prop::option::of(prop_oneof![
        Just(json!(null)),
        Just(json!({})),
        Just(json!({"include_usage": true})),
        Just(json!({"include_usage": false}))
    ]);
    (messages, limit.clone(), limit, any::<bool>(), options, text, any::<bool>()).prop_map(
        |(messages, max, completion, stream, options, stop, pretty)| {
            let mut body = json!({"model": "demo", "messages": messages, "stream": stream, "stop": stop, "temperature": 0.5});
            for (name, value) in
                [("max_tokens", max), ("max_completion_tokens", completion), ("stream_options", options.filter(|_| stream))]
            {
                if let Some(value) = value {
                    body[name] = value;
                }
            }
            (body, pretty)
        },
    )
}

proptest! {
    #[test]
    fn a_spliced_body_parses_equal_but_for_the_spliced_fields((body, pretty) in body(), output in 1i64..1_000_000) {
        let text = if pretty { serde_json::to_vec_pretty(&body) } else { serde_json::to_vec(&body) }.unwrap();
        let call = Call::parse(Operation::Chat, Bytes::from(text), "demo").unwrap();
        let mut sent: Value = serde_json::from_slice(&call.render("upstream", OutputLimit::default(), output)).unwrap();
        let mut expected = body.clone();
        expected["model"] = json!("upstream");
        let limited = |name: &str| body.get(name).is_some();
        for name in ["max_tokens", "max_completion_tokens"] {
            if limited(name) {
                expected[name] = json!(output);
            }
        }
        if !limited("max_tokens") && !limited("max_completion_tokens") {
            expected["max_tokens"] = json!(output);
        }
        if call.stream() {
            prop_assert_eq!(&sent["stream_options"]["include_usage"], &json!(true));
            sent.as_object_mut().unwrap().remove("stream_options");
            expected.as_object_mut().unwrap().remove("stream_options");
        }
        prop_assert_eq!(sent, expected);
    }

    #[test]
    fn no_bytes_crash_it(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Call::parse(Operation::Chat, Bytes::from(bytes), "demo");
    }
}
