//! The API server's rules and our own parsers accept the same texts, so that nothing fails to parse after it was admitted.

use agentrun_crds::paths::{AllowedPath, RelativePath};
use agentrun_crds::{git, quantity};
use kube::core::cel::{CompiledSchema, Validator, compile_schema};
use proptest::prelude::*;
use serde_json::Value;

/// The rules of one text of the AgentRun's spec.
struct Rules {
    most: usize,
    compiled: CompiledSchema,
    validator: Validator,
}

impl Rules {
    fn of(pointer: &str) -> Rules {
        let crd = agentrun_crds::all().pop().expect("AgentRun is last");
        let props = crd.spec.versions[0].schema.as_ref().and_then(|s| s.open_api_v3_schema.as_ref()).expect("a schema");
        let schema = serde_json::to_value(props).expect("JSON");
        let place = pointer.split('/').fold(&schema, |here, step| if step == "[]" { &here["items"] } else { &here["properties"][step] });
        let most = place["maxLength"].as_f64().or(place["maxLength"].as_u64().map(|most| most as f64)).expect("a bound") as usize;
        Rules { most, compiled: compile_schema(place), validator: Validator::new() }
    }

    fn accept(&self, text: &str) -> bool {
        let characters = text.chars().count();
        (1..=self.most).contains(&characters) && self.validator.validate_compiled(&self.compiled, &Value::from(text), None).is_ok()
    }
}

/// Texts near the edges of the path grammar.
fn path() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => proptest::sample::select(vec![
            "a", "b.py", ".", "..", "/", "//", "**", "*", "\\", ".git", ".GIT", "git~1", "GIT~1", ".gıt", ".ſ", " ", ":", "::$DATA", "/**", "\u{202e}",
            "\u{200b}", "\u{ad}", "\u{feff}", "\u{e0041}", "\0", "\n", "\r", "\u{7f}", "\u{85}", "ü", "日", "\u{2028}", "-", "~", "\u{212a}",
        ]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
        1 => (500..520usize).prop_map(|length| "a".repeat(length)),
        1 => (250..260usize).prop_map(|length| "ü".repeat(length)),
    ];
    proptest::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

/// Texts near the edges of amounts and durations.
fn amount() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        3 => proptest::sample::select(vec![".", "h", "m", "s", "ms", "-", "+", "e", " ", "٣", "0", "1", "24", "00", "d", "\n"]).prop_map(str::to_owned),
        2 => "[0-9]{1,10}",
    ];
    proptest::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

#[test]
fn paths() {
    let (files, allowed) = (Rules::of("spec/source/inline/files/[]/path"), Rules::of("spec/allowedPaths/[]"));
    proptest!(config(600), |(text in path())| {
        prop_assert_eq!(files.accept(&text), RelativePath::parse(&text).is_ok(), "path {:?}", text);
        prop_assert_eq!(allowed.accept(&text), AllowedPath::parse(&text).is_ok(), "allowed path {:?}", text);
    });
}

/// Texts near the edges of URLs and refs.
fn repository() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => proptest::sample::select(vec![
            "https://", "http://", "git.a", "a", "A", "-", ".", "..", "/", "//", ":443", ":0", ":65535", ":65536", ":080", ":", "@", "?", "#", "%2e",
            "~", "+", "_", ".git", ".lock", "refs/heads/", "@{", " ", "\\", "\n", "\0", "ü", "\u{202e}", "[::1]", "=", ",",
        ]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
        1 => (248..260usize).prop_map(|length| "a".repeat(length)),
    ];
    let rest = proptest::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat());
    (proptest::sample::select(vec!["https://a/", "https://a", "http://", ""]), rest).prop_map(|(head, rest)| format!("{head}{rest}"))
}

#[test]
fn repositories_and_refs() {
    let (url, reference) = (Rules::of("spec/source/git/url"), Rules::of("spec/source/git/ref"));
    proptest!(config(1_500), |(text in repository())| {
        prop_assert_eq!(url.accept(&text), git::GitUrl::parse(&text).is_some(), "url {:?}", text);
        prop_assert_eq!(reference.accept(&text), git::is_ref(&text), "ref {:?}", text);
    });
}

#[test]
fn money_and_time() {
    let (cost, wall_time) = (Rules::of("spec/limits/budget/cost"), Rules::of("spec/limits/wallTime"));
    proptest!(config(1_000), |(text in amount())| {
        prop_assert_eq!(cost.accept(&text), quantity::micros(&text).is_ok() && text.len() <= 16, "cost {:?}", text);
        let seconds = quantity::seconds(&text);
        let within = seconds.is_ok_and(|seconds| (1..=24 * 3600).contains(&seconds));
        // Leading zeros make a text longer than any duration needs to be.
        prop_assert!(!wall_time.accept(&text) || within, "wall time {:?}", text);
        prop_assert!(!within || wall_time.accept(&text) || text.contains("00"), "wall time {:?}", text);
    });
}
