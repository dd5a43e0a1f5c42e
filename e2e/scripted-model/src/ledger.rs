//! What was served, for assertions: a bill per model, the last requests, and how often the same request came. Bounded.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Requests kept for `GET /__seen`.
const SEEN: usize = 128;
/// Bytes kept of each request's body.
const SEEN_BODY_BYTES: usize = 16 * 1024;
/// Most models on the bill; further ones are counted as `other`.
const MODELS: usize = 1024;
/// Requests whose tries are counted.
const TRIES: usize = 65_536;

/// One model's line of the bill.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// Requests that came with the right key.
    pub requests: u64,
    /// Requests with a wrong key or none.
    pub unauthorized: u64,
    /// Requests answered with an error status by a fault.
    pub failed: u64,
    /// Answers sent to their end.
    pub finished: u64,
    /// Tokens that answers reported, counted when the report was sent.
    pub prompt_tokens: i64,
    pub completion_tokens: i64,
}

/// A request as it arrived.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Seen {
    pub model: String,
    /// Unix milliseconds of its arrival.
    pub at: u64,
    /// In the order of arrival, with the bearer key: this is a tool for tests.
    pub headers: Vec<(String, String)>,
    /// At most 16 KiB of it.
    pub body: String,
}

/// Counters of one server.
#[derive(Default)]
pub struct Ledger {
    inner: Mutex<Inner>,
    changed: tokio::sync::Notify,
}

#[derive(Default)]
struct Inner {
    bill: BTreeMap<String, Line>,
    seen: VecDeque<Seen>,
    tries: HashMap<(String, u64), u64>,
}

impl Ledger {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Change a model's line.
    pub fn count(&self, model: &str, change: impl FnOnce(&mut Line)) {
        let mut inner = self.lock();
        let model = if inner.bill.len() >= MODELS && !inner.bill.contains_key(model) { "other" } else { model };
        change(inner.bill.entry(model.to_owned()).or_default());
        self.changed.notify_waiters();
    }

    /// Keep a request.
    pub fn keep(&self, model: &str, headers: &http::HeaderMap, body: &[u8]) {
        let headers =
            headers.iter().map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())).collect();
        let body = String::from_utf8_lossy(&body[..body.len().min(SEEN_BODY_BYTES)]).into_owned();
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let mut inner = self.lock();
        if inner.seen.len() >= SEEN {
            inner.seen.pop_front();
        }
        inner.seen.push_back(Seen { model: model.to_owned(), at, headers, body });
    }

    /// Wait until this many requests with the right key have come for a model.
    pub async fn until_requests(&self, model: &str, least: u64) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.lock().bill.get(model).is_some_and(|line| line.requests >= least) {
                return;
            }
            changed.await;
        }
    }

    /// How often this request came before, and count it.
    pub fn try_number(&self, script: &str, conversation: u64) -> u64 {
        let mut inner = self.lock();
        if inner.tries.len() >= TRIES {
            inner.tries.clear();
        }
        let tries = inner.tries.entry((script.to_owned(), conversation)).or_default();
        *tries += 1;
        *tries - 1
    }

    /// The bill so far.
    pub fn bill(&self) -> BTreeMap<String, Line> {
        self.lock().bill.clone()
    }

    /// The last requests, of one model or of all, oldest first.
    pub fn seen(&self, model: Option<&str>) -> Vec<Seen> {
        self.lock().seen.iter().filter(|seen| model.is_none_or(|model| model == seen.model)).cloned().collect()
    }
}
