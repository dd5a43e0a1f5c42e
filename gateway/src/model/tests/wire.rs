//! Faults of a provider below HTTP, or at its edge: every one in every dialect, for JSON and for a stream.

use futures::future::join_all;

use super::dialects::{ALL, FULL, Spoken};
use super::raw::{Raw, Step, body, good, header, of_length, say};
use super::*;

/// Status, our code (in the answer, or in the event that ends a stream that had begun), upstream attempts, output charged.
type Outcome = (u16, &'static str, i64, i64);
/// Its name, what the provider does, what a JSON call comes to, what a stream does.
type Fault = (&'static str, fn(Spoken, bool) -> Vec<Step>, Outcome, Outcome);

const GOOD: Outcome = (200, "", 1, 4);
const LOST: Outcome = (502, "provider_unavailable", 1, FULL);
const SLOW: Outcome = (504, "provider_timeout", 1, FULL);
const SLOW_STREAM: Outcome = (200, "provider_timeout", 1, FULL);
const INVALID: Outcome = (502, "provider_response_invalid", 1, FULL);
const CUT: Outcome = (502, "provider_stream_incomplete", 1, FULL);
const CUT_STREAM: Outcome = (200, "provider_stream_incomplete", 1, FULL);
const REDIRECT: Outcome = (502, "provider_redirect", 1, 0);
const LIMITED: Outcome = (429, "provider_rate_limited", 1, 0);
const OVERLOADED: Outcome = (503, "provider_overloaded", 2, 0);
const FAILING: Outcome = (502, "provider_unavailable", 2, 0);

const MOMENT: Duration = Duration::from_millis(100);
const UPGRADE: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
const HINTS: &str = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n";

const FAULTS: &[Fault] = &[
    ("a header a byte at a time", |_, streamed| vec![Step::Drip(header(streamed, "").into_bytes(), MOMENT)], SLOW, SLOW),
    ("a header of a megabyte", |_, streamed| vec![say(header(streamed, &"x: yyyyyyyyyyy\r\n".repeat(70_000)))], LOST, LOST),
    ("silence after the header", |_, streamed| vec![say(of_length(streamed, 100)), Step::Hang], SLOW, SLOW_STREAM),
    (
        "a byte at a time for ever",
        |spoken, streamed| vec![say(of_length(streamed, 5000) + &begun(spoken, streamed)), Step::Drip(vec![b' '; 900], MOMENT)],
        SLOW,
        SLOW_STREAM,
    ),
    ("closed before an answer", |_, _| vec![], LOST, LOST),
    ("reset before an answer", |_, _| vec![Step::Reset], LOST, LOST),
    ("no HTTP at all", |_, _| vec![say(format!("SSH-2.0-{KEY}\r\n\r\n"))], LOST, LOST),
    (
        "two lengths",
        |spoken, streamed| vec![say(header(streamed, "content-length: 3\r\ncontent-length: 4\r\n") + &body(spoken, streamed))],
        LOST,
        LOST,
    ),
    ("a length beyond the body", |spoken, streamed| vec![say(of_length(streamed, 5000) + &begun(spoken, streamed))], CUT, CUT_STREAM),
    (
        "a length within the body",
        |spoken, streamed| {
            let whole = body(spoken, streamed);
            vec![say(of_length(streamed, whole.len() - 3) + &whole)]
        },
        INVALID,
        CUT_STREAM,
    ),
    ("a second answer behind the first", |spoken, streamed| vec![Step::Say(good(spoken, streamed).repeat(2)), Step::Next], GOOD, GOOD),
    (
        "reset in the middle",
        |spoken, streamed| vec![say(of_length(streamed, 5000) + &begun(spoken, streamed)), Step::Pause(MOMENT), Step::Reset],
        CUT,
        CUT_STREAM,
    ),
    (
        "chunks that are none",
        |spoken, streamed| {
            let begun = begun(spoken, streamed);
            vec![say(format!("{}{:x}\r\n{begun}\r\nzz\r\n", header(streamed, "transfer-encoding: chunked\r\n"), begun.len()))]
        },
        CUT,
        CUT_STREAM,
    ),
    (
        "HTTP/1.0, whose body ends with the connection",
        |spoken, streamed| vec![say(header(streamed, "").replace("HTTP/1.1", "HTTP/1.0") + &body(spoken, streamed))],
        GOOD,
        GOOD,
    ),
    ("early hints", |spoken, streamed| vec![say(HINTS), Step::Say(good(spoken, streamed))], GOOD, GOOD),
    ("another protocol", |_, _| vec![say(UPGRADE), Step::Hang], INVALID, INVALID),
    (
        "gzip that nobody asked for",
        |spoken, streamed| vec![say(header(streamed, "content-encoding: gzip\r\n") + &body(spoken, streamed))],
        INVALID,
        INVALID,
    ),
    ("JSON for a stream, or the reverse", |spoken, streamed| vec![Step::Say(good(spoken, !streamed))], INVALID, INVALID),
    ("a redirect", |_, _| refused("307 X", "location: http://127.0.0.1:1/\r\n"), REDIRECT, REDIRECT),
    ("429 with Retry-After", |_, _| refused("429 X", "retry-after: 7\r\n"), LIMITED, LIMITED),
    ("529 with Retry-After", |_, _| refused("529 X", "retry-after: 7\r\n"), OVERLOADED, OVERLOADED),
    ("500", |_, _| refused("500 X", ""), FAILING, FAILING),
    // It may have been taken all the same.
    ("an error that is cut", |_, _| vec![say("HTTP/1.1 500 X\r\ncontent-length: 99\r\n\r\nx")], LOST, LOST),
];

/// What there is of an answer that is broken off: the first events of a stream, whole.
fn begun(spoken: Spoken, streamed: bool) -> String {
    if streamed { spoken.chunk.to_owned() } else { spoken.reply[..20].to_owned() }
}

fn refused(status: &str, more: &str) -> Vec<Step> {
    vec![say(format!("HTTP/1.1 {status}\r\n{more}content-length: {}\r\n\r\n{KEY}", KEY.len())), Step::Next]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_fault_of_the_wire_in_every_dialect() {
    let cases = ALL.into_iter().flat_map(|spoken| [(spoken, false), (spoken, true)]);
    let checks = join_all(cases.map(|(spoken, streamed)| tokio::spawn(every_fault(spoken, streamed))));
    let failed: Vec<String> = checks.await.into_iter().flat_map(Result::unwrap).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

async fn every_fault(spoken: Spoken, streamed: bool) -> Vec<String> {
    let mut failed = Vec::new();
    let mut run = run_json();
    run["status"]["budget"]["limit"]["requests"] = json!(10_000);
    let world = nobody(spoken, run).await;
    for (name, steps, json, stream) in FAULTS {
        let expected = if streamed { *stream } else { *json };
        let raw = Raw::new(move |_| steps(spoken, streamed)).await;
        let mut provider = patient(spoken, &raw);
        if expected.1 == "provider_timeout" {
            provider.spec.timeouts = spoken.provider("scripted", &world.upstream).spec.timeouts;
            provider.spec.timeouts.total = Some("2s".into());
        }
        world.gateway.state.model.providers.put(provider);
        let (outcome, wrong) = outcome(spoken, streamed, &world, &raw).await;
        let expected = (expected.0, expected.1.to_owned(), expected.2, expected.3);
        if outcome != expected || wrong.is_some() {
            let form = if streamed { "stream" } else { "JSON" };
            failed.push(format!("{name}, {} {form}: {outcome:?}, expected {expected:?} {wrong:?}", spoken.dialect));
        }
    }
    failed
}

/// What one call comes to, and what is wrong with it in any case.
async fn outcome(spoken: Spoken, streamed: bool, world: &World, raw: &Raw) -> ((u16, String, i64, i64), Option<String>) {
    let before = world.api.budget().spent;
    let response = spoken.send(world, streamed).await;
    let status = response.status().as_u16();
    let retry_after = response.headers().get("retry-after").is_some_and(|value| value == "7");
    let (answer, clean) = all(response).await;
    let code = match (status, clean) {
        (200, true) => String::new(),
        (200, false) => spoken.last_code(&answer),
        _ => spoken.code(&answer),
    };
    world.gateway.state.ledger.idle().await;
    let spent = world.api.budget().spent;
    let attempts = spent.upstream_attempts - before.upstream_attempts;
    let wrong = [
        (code.is_empty() && answer != body(spoken, streamed), "the answer was changed"),
        (answer.contains(KEY), "words of the provider got through"),
        (retry_after != matches!(code.as_str(), "provider_rate_limited" | "provider_overloaded"), "Retry-After"),
        (spent.requests != before.requests + 1, "it is not one request"),
        (raw.progress().requests as i64 != attempts, "the provider was asked another number of times"),
        (!world.api.lock().violations.is_empty(), "a rule of the budget was broken"),
    ];
    let wrong = wrong.into_iter().find_map(|(wrong, what)| wrong.then(|| format!("{what}: {answer}")));
    ((status, code, attempts, spent.output_tokens - before.output_tokens), wrong)
}

/// A world with this run, in which only what a test puts in place of its provider is asked.
pub async fn nobody(spoken: Spoken, run: Value) -> World {
    spoken.world_with(run, upstream::Upstream::new(|_, _| panic!("nobody asks this one")).await).await
}

/// This provider, with more patience than a loaded machine needs.
pub fn patient(spoken: Spoken, raw: &Raw) -> ModelProvider {
    let mut provider = spoken.provider_at("scripted", &format!("http://{}{}", raw.address, spoken.upstream[0]));
    let timeouts = &mut provider.spec.timeouts;
    for time in [&mut timeouts.connect, &mut timeouts.first_byte, &mut timeouts.idle, &mut timeouts.total] {
        *time = Some("60s".into());
    }
    provider
}

/// A world with this run and this provider.
pub async fn against(spoken: Spoken, raw: &Raw, run: Value) -> World {
    let world = nobody(spoken, run).await;
    world.gateway.state.model.providers.put(patient(spoken, raw));
    world
}
