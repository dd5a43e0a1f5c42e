//! Streams a log to one reader. Memory is bounded: a page at a time, a few pages in flight. A reader that does not take them
//! is let go with a note where to resume; what it holds meanwhile is one connection.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;

use super::cursor::Wanted;
use crate::clock::Clock;
use crate::store::{EventStore, GateGuard, Page, PageLimit, StoreError};

/// How long a stream waits for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub heartbeat: Duration,
    /// For a reader to take what was sent.
    pub patience: Duration,
    /// Then the reader comes again, and is authorised again.
    pub longest: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Times { heartbeat: Duration::from_secs(15), patience: Duration::from_secs(30), longest: Duration::from_secs(3600) }
    }
}

/// Pages that may wait for the reader.
const IN_FLIGHT: usize = 4;

pub(super) struct Follower {
    pub store: Arc<dyn EventStore>,
    pub clock: Clock,
    pub run_uid: String,
    pub wanted: Wanted,
    pub times: Times,
    wake: watch::Receiver<u64>,
}

impl Follower {
    pub(super) fn new(store: Arc<dyn EventStore>, clock: Clock, run_uid: String, wanted: Wanted, times: Times) -> Self {
        let wake = store.subscribe(&run_uid);
        Follower { store, clock, run_uid, wanted, times, wake }
    }

    /// The next page. An append after this wakes the follower.
    pub(super) async fn page(&mut self) -> Result<Page, StoreError> {
        self.wake.borrow_and_update();
        self.store.read(&self.run_uid, self.wanted.after, PageLimit::STREAM).await
    }

    /// The stream from a first page on. `place` is given back when it ends.
    pub(super) fn body(self, first: Page, place: GateGuard) -> Body {
        Body::from_stream(self.stream(first, place).map(Ok::<_, std::convert::Infallible>))
    }

    fn stream(self, first: Page, place: GateGuard) -> impl Stream<Item = Bytes> + Send + 'static {
        let (sender, receiver) = mpsc::channel(IN_FLIGHT);
        let (last_words, farewell) = oneshot::channel();
        tokio::spawn(async move {
            if let Some(text) = self.pump(first, sender).await {
                let _ = last_words.send(Bytes::from(text));
            }
            drop(place);
        });
        let farewell = futures::stream::once(farewell).filter_map(|text| std::future::ready(text.ok()));
        ReceiverStream::new(receiver).chain(farewell)
    }

    /// Send until the log ends, the reader goes, or patience does; then what is left to say.
    async fn pump(mut self, first: Page, reader: mpsc::Sender<Bytes>) -> Option<String> {
        let until = Instant::now() + self.times.longest;
        let form = self.wanted.form;
        let mut page = first;
        loop {
            let (text, last) = form.page(&page, self.clock.unix_millis());
            if !text.is_empty() {
                match timeout(self.times.patience, reader.send(text.into())).await {
                    Ok(Ok(())) => self.wanted.after = last.unwrap_or(self.wanted.after),
                    Ok(Err(_)) => return None,
                    Err(_) => return Some(form.farewell("reader_too_slow", "this reader did not keep up", self.wanted.after)),
                }
            }
            if self.wanted.after >= page.last {
                if page.closed || !self.wanted.follow {
                    return None;
                }
                if let Some(end) = self.wait(&reader, until).await {
                    return end;
                }
            }
            page = match self.page().await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(%error, "reading a log for a follower failed");
                    return Some(form.farewell("storage_unavailable", "the log cannot be read just now", self.wanted.after));
                }
            };
        }
    }

    /// Until the log has grown; `Some` if the stream is to end instead, with what is left to say.
    async fn wait(&mut self, reader: &mpsc::Sender<Bytes>, until: Instant) -> Option<Option<String>> {
        let form = self.wanted.form;
        loop {
            tokio::select! {
                changed = self.wake.changed() => match changed {
                    Ok(()) => return None,
                    Err(_) => return Some(Some(form.farewell("storage_unavailable", "the store has been closed", self.wanted.after))),
                },
                () = reader.closed() => return Some(None),
                () = tokio::time::sleep_until(until) => {
                    let message = format!("a stream ends after {} s here", self.times.longest.as_secs());
                    return Some(Some(form.farewell("stream_too_long", &message, self.wanted.after)));
                }
                () = tokio::time::sleep(self.times.heartbeat) => {
                    if timeout(self.times.patience, reader.send(form.heartbeat().into())).await.is_err() {
                        return Some(Some(form.farewell("reader_too_slow", "this reader did not keep up", self.wanted.after)));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use agentrun_protocol::event::EventType;
    use serde_json::json;

    use super::super::frames::Form;
    use super::*;
    use crate::store::{Gate, Gates, NewRecord, Origin, Quotas, RunRef, embedded};

    fn run() -> RunRef {
        RunRef { uid: "u".into(), namespace: "n".into(), name: "r".into() }
    }

    struct Log {
        _folder: tempfile::TempDir,
        store: Arc<dyn EventStore>,
    }

    impl Log {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("folder");
            let store =
                embedded::Embedded::open(folder.path(), Quotas::default(), embedded::Limits::default(), Clock::system()).expect("store");
            Log { _folder: folder, store: Arc::new(store) }
        }

        async fn append(&self, key: &str, kind: EventType, bytes: usize) {
            let record = NewRecord::new(key, kind, &json!({"text": "x".repeat(bytes)}));
            self.store.append(&run(), 1, Origin::Gateway, vec![record]).await.expect("appended");
        }

        async fn follow(&self, after: i64, form: Form, times: Times, gates: &Gates) -> std::pin::Pin<Box<dyn Stream<Item = Bytes> + Send>> {
            let wanted = Wanted { after, follow: true, form };
            let mut follower = Follower::new(self.store.clone(), Clock::system(), "u".into(), wanted, times);
            let first = follower.page().await.expect("page");
            let place = gates.enter(Gate::Follow, "u").expect("room");
            Box::pin(follower.stream(first, place))
        }
    }

    async fn next(stream: &mut (impl Stream<Item = Bytes> + Unpin)) -> Option<String> {
        let piece = timeout(Duration::from_secs(20), stream.next()).await.expect("in time");
        piece.map(|bytes| String::from_utf8(bytes.to_vec()).expect("UTF-8"))
    }

    /// Wait until the run may have one more follower.
    async fn free(gates: &Gates) {
        let wait = async {
            while gates.enter(Gate::Follow, "u").is_err() {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(20), wait).await.expect("freed");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_follower_sees_events_as_they_come_and_the_end() {
        let log = Log::new();
        log.append("1", EventType::Phase, 1).await;
        let mut stream = log.follow(0, Form::Sse, Times::default(), &Gates::default()).await;
        assert!(next(&mut stream).await.expect("first").starts_with("id: 1\nevent: phase\n"));
        let asked = std::time::Instant::now();
        log.append("2", EventType::Phase, 1).await;
        assert!(next(&mut stream).await.expect("second").starts_with("id: 2\n"));
        assert!(asked.elapsed() < Duration::from_secs(5), "woken, not by the heartbeat");
        log.append("end", EventType::End, 1).await;
        assert!(next(&mut stream).await.expect("end").starts_with("id: 3\nevent: end\n"));
        assert_eq!(next(&mut stream).await, None);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_quiet_stream_has_heartbeats_and_an_end() {
        let log = Log::new();
        let times = Times { heartbeat: Duration::from_millis(5), longest: Duration::from_millis(200), ..Times::default() };
        let mut sse = log.follow(0, Form::Sse, times, &Gates::default()).await;
        assert_eq!(next(&mut sse).await.as_deref(), Some(": keep-alive\n\n"));
        let mut last = String::new();
        while let Some(text) = next(&mut sse).await {
            last = text;
        }
        assert_eq!(last, ": stream_too_long: a stream ends after 0 s here; resume with Last-Event-ID: 0\n\n");
        let mut ndjson = log.follow(0, Form::Ndjson, times, &Gates::default()).await;
        assert_eq!(next(&mut ndjson).await.as_deref(), Some("\n"));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_slow_reader_is_let_go_and_resumes_without_loss() {
        let log = Log::new();
        for n in 0..200 {
            log.append(&n.to_string(), EventType::Phase, 60_000).await;
        }
        log.append("end", EventType::End, 1).await;
        let times = Times { patience: Duration::from_millis(50), ..Times::default() };
        let (mut after, mut seen, mut cuts) = (0, Vec::new(), 0);
        while seen.len() < 201 {
            // One place is left; it is free again when the pump has lost its patience, having room for a few pages only.
            let gates = Gates::default();
            let _others: Vec<_> = (0..31).map(|_| gates.enter(Gate::Follow, "u").expect("room")).collect();
            let mut stream = log.follow(after, Form::Ndjson, times, &gates).await;
            free(&gates).await;
            while let Some(text) = next(&mut stream).await {
                for line in text.lines() {
                    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
                    match line["seq"].as_i64() {
                        Some(seq) => {
                            seen.push(seq);
                            after = seq;
                        }
                        None => {
                            cuts += 1;
                            assert_eq!(line["error"]["code"], "reader_too_slow");
                            assert!(line["error"]["message"].as_str().expect("text").ends_with(&format!("?after={after}")));
                        }
                    }
                }
            }
        }
        assert_eq!(seen, (1..=201).collect::<Vec<i64>>());
        assert!(cuts > 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_reader_that_goes_frees_its_place() {
        let log = Log::new();
        let gates = Gates::default();
        let wanted = Wanted { after: 0, follow: true, form: Form::Sse };
        let mut follower = Follower::new(log.store.clone(), Clock::system(), "u".into(), wanted, Times::default());
        let first = follower.page().await.expect("page");
        let places: Vec<_> = (0..31).map(|_| gates.enter(Gate::Follow, "u").expect("room")).collect();
        let stream = follower.stream(first, gates.enter(Gate::Follow, "u").expect("the last place"));
        assert!(gates.enter(Gate::Follow, "u").is_err());
        drop(stream);
        free(&gates).await;
        drop(places);
    }
}
