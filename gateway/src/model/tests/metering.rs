//! What is charged in each dialect: odd reports, and many streams on a budget for few.

use futures::future::join_all;

use super::dialects::{ALL, FULL, Spoken};
use super::raw::body;
use super::upstream::{Upstream, piece, reply, stream};
use super::*;

/// Reports that cannot be true; `IN` and `OUT` stand for the dialect's names.
const ODD: &[&str] = &[
    r#"{"IN":0,"OUT":0}"#,
    r#"{"IN":-5,"OUT":1}"#,
    r#"{"IN":5,"OUT":-1}"#,
    r#"{"IN":"5","OUT":1}"#,
    r#"{"IN":5,"OUT":"1"}"#,
    r#"{"IN":5.5,"OUT":1}"#,
    r#"{"IN":9223372036854775808,"OUT":1}"#,
    r#"{"IN":5,"OUT":9223372036854775808}"#,
    r#"{"IN":5,"IN":5,"OUT":1}"#,
    r#"{"IN":5}"#,
    r#"{"OUT":5}"#,
    r#""much""#,
    "[]",
];

/// A text with each report of usage in it put through `change`.
fn with_reports(spoken: Spoken, text: &str, change: &dyn Fn(&str) -> String) -> String {
    let start = format!("{}{{", member(spoken));
    let (mut changed, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(&start) {
        let report = match rest[at..].starts_with(spoken.usage) {
            true => spoken.usage,
            // Those of the streams hold no objects.
            false => &rest[at..=at + rest[at..].find('}').unwrap()],
        };
        changed += &rest[..at];
        changed += &change(report);
        rest = &rest[at + report.len()..];
    }
    changed + rest
}

/// What stands before a report.
fn member(spoken: Spoken) -> &'static str {
    &spoken.usage[..=spoken.usage.find(':').unwrap()]
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_usage_is_charged_at_the_reservation() {
    join_all(ALL.into_iter().flat_map(|spoken| [odd_usage(spoken, false), odd_usage(spoken, true)])).await;
}

async fn odd_usage(spoken: Spoken, streamed: bool) {
    let [input, output] = spoken.numbers;
    let whole = body(spoken, streamed);
    let odd = ODD.iter().map(|odd| {
        let report = format!("{}{}", member(spoken), odd.replace("IN", input).replace("OUT", output));
        with_reports(spoken, &whole, &|_| report.clone())
    });
    let missing = with_reports(spoken, &whole, &|_| r#""none":1"#.into());
    let twice = with_reports(spoken, &whole, &|report| format!("{report},{report}"));
    let answers: Vec<String> = [missing, twice].into_iter().chain(odd).collect();
    let given = answers.clone();
    let answer = move |number: usize, _: &Value| match streamed {
        true => stream(vec![piece(&given[number])]),
        false => reply(&given[number]),
    };
    let mut run = run_json();
    run["status"]["budget"]["limit"]["requests"] = json!(10_000);
    let world = spoken.world_with(run, Upstream::new(answer).await).await;
    for (number, answer) in (1..).zip(answers) {
        assert_eq!(all(spoken.send(&world, streamed).await).await, (answer.clone(), true), "{}", spoken.dialect);
        world.gateway.state.ledger.idle().await;
        let spent = world.api.budget().spent;
        assert_eq!((spent.requests, spent.output_tokens), (number, number * FULL), "{}: {answer}", spoken.dialect);
    }
}

#[tokio::test]
async fn a_report_that_is_repeated_is_charged_once() {
    for spoken in ALL {
        let events = move |_: usize, _: &Value| stream([spoken.chunk, spoken.endless, spoken.endless, spoken.tail].map(piece).to_vec());
        let world = spoken.world(Upstream::new(events).await).await;
        assert!(all(spoken.send(&world, true).await).await.1, "{}", spoken.dialect);
        let spent = world.settled().await.spent;
        assert_eq!((spent.requests, spent.input_tokens, spent.output_tokens), (1, 30, 4), "{}", spoken.dialect);
    }
}

/// On two gateways with a real API server: `e2e/tests/gateway/leases.rs`.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_256_streams_on_a_budget_for_16_exactly_16_pass() {
    for spoken in ALL {
        let name = spoken.dialect;
        let mut run = run_json();
        run["status"]["budget"]["limit"]["requests"] = json!(16);
        let world = spoken.world_with(run, Upstream::new(move |_, _| stream([spoken.chunk, spoken.tail].map(piece).to_vec())).await).await;
        let answers = join_all((0..256).map(|_| async {
            let response = spoken.send(&world, true).await;
            (response.status().as_u16(), all(response).await)
        }));
        let mut passed = 0;
        for (status, (answer, clean)) in answers.await {
            if status == 200 {
                assert!(clean, "{name}: {answer}");
                passed += 1;
            } else {
                let code = spoken.code(&answer);
                let expected = ["model_request_budget_exhausted", "too_many_calls_in_flight"];
                assert!(expected.contains(&code.as_str()), "{name}: {status} {answer}");
            }
        }
        assert_eq!((passed, world.upstream.seen().len()), (16, 16), "{name}");
        let spent = world.settled().await.spent;
        assert_eq!((spent.requests, spent.upstream_attempts, spent.output_tokens), (16, 16, 64), "{name}");
    }
}
