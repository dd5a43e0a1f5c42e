//! A recorded stream that is cut after each of its bytes: never whole for the agent, never less than the reservation for the budget.

use futures::StreamExt;

use super::dialects::{ALL, FULL, GEMINI, Spoken};
use super::raw::{Raw, Step, body, of_length, say};
use super::wire::against;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stream_cut_after_any_byte_ends_as_an_error_and_is_charged_in_full() {
    for spoken in ALL {
        cut_everywhere(spoken).await;
    }
}

async fn cut_everywhere(spoken: Spoken) {
    let name = spoken.dialect;
    let whole = body(spoken, true);
    let cuts = whole.len() - 1;
    let mut run = run_json();
    run["status"]["budget"]["limit"]["requests"] = json!(10_000);
    let recorded = whole.clone();
    let raw = Raw::new(move |number| {
        let sent = recorded.as_bytes()[..number % cuts + 1].to_vec();
        vec![say(of_length(true, recorded.len() + 1)), Step::Say(sent)]
    })
    .await;
    let world = against(spoken, &raw, run).await;
    let answers = futures::stream::iter(0..cuts).map(|_| async { all(spoken.send(&world, true).await).await });
    let answers: Vec<(String, bool)> = answers.buffer_unordered(16).collect().await;
    let mut passed_on = 0;
    for (answer, clean) in answers {
        assert!(!clean, "{name}: it looks whole: {answer}");
        assert_eq!(spoken.last_code(&answer), "provider_stream_incomplete", "{name}: {answer}");
        let before = answer.trim_end().rfind("\n\n").map_or("", |end| &answer[..end + 2]);
        assert!(whole.starts_with(before) && before.len() < whole.len(), "{name}: {answer}");
        passed_on = passed_on.max(before.len());
    }
    assert!(passed_on >= spoken.chunk.len(), "{name}: whole events are passed on");
    let spent = world.settled().await.spent;
    let cuts = cuts as i64;
    assert_eq!((spent.requests, spent.upstream_attempts, spent.output_tokens), (cuts, cuts, cuts * FULL), "{name}");
}

#[tokio::test]
async fn where_only_the_end_of_the_body_says_that_nothing_follows_it_must_be_a_proper_end() {
    for more in ["", "data: {\"candidates\":[{\"content\""] {
        let sent = format!("{}{more}", body(GEMINI, true));
        let raw =
            Raw::new(move |_| vec![say(of_length(true, sent.len() + usize::from(more.is_empty()))), Step::Say(sent.clone().into_bytes())])
                .await;
        let world = against(GEMINI, &raw, run_json()).await;
        let (answer, clean) = all(GEMINI.send(&world, true).await).await;
        assert!(!clean, "{more:?}: it looks whole: {answer}");
        assert_eq!(GEMINI.last_code(&answer), "provider_stream_incomplete", "{more:?}: {answer}");
        assert_eq!(world.settled().await.spent.output_tokens, FULL, "{more:?}");
    }
}
