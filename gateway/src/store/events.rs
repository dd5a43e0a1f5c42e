//! The event store: for each run a log of events, dense from 1, durable before it is acknowledged.

use agentrun_protocol::event::EventType;
use serde_json::Value;
use tokio::sync::watch;

use super::{Answer, Origin, RunRef};

/// Logs of events. Implementations promise:
/// - **Dense**: a log's numbers are 1, 2, 3, …; a number is taken in the append's own transaction.
/// - **Durable**: what `append` has answered survives a crash.
/// - **Once**: a (attempt, origin, key) is stored once. The same body again gets the old number, also after the close;
///   another body is `KeyConflict`.
/// - **Whole**: an append is stored in full, but for what quotas drop (number 0, and one `truncated` event), or not at all.
/// - **Closed**: nothing follows an `end` event.
pub trait EventStore: Send + Sync + 'static {
    /// Append in order; one number per record, 0 for a dropped one.
    fn append(&self, run: &RunRef, attempt: i64, origin: Origin, records: Vec<NewRecord>) -> Answer<'_, Vec<i64>>;

    /// The events after a cursor, oldest first, as many as the limit allows (at least one if there is any).
    /// A run without a log reads as an empty one. A cursor beyond the end: `CursorAhead`.
    fn read(&self, run_uid: &str, after: i64, limit: PageLimit) -> Answer<'_, Page>;

    /// Changes whenever the log may have grown. Mark it seen *before* reading, then nothing is missed.
    fn subscribe(&self, run_uid: &str) -> watch::Receiver<u64>;

    /// What is known of a log; `None` if there is none.
    fn state(&self, run_uid: &str) -> Answer<'_, Option<LogState>>;

    /// Runs whose log has not been closed.
    fn open_logs(&self) -> Answer<'_, Vec<RunRef>>;

    /// Runs whose log was closed before this moment (Unix milliseconds) and not purged yet; at most `limit`.
    fn expired(&self, closed_before: i64, limit: usize) -> Answer<'_, Vec<RunRef>>;

    /// Delete a closed log's events but the last. Readers get a gap. Repeating is harmless; an open log is left alone.
    fn purge(&self, run_uid: &str) -> Answer<'_, ()>;
}

/// An event to be appended, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRecord {
    pub key: String,
    pub kind: EventType,
    /// JSON text with sorted members, so that equal bodies are equal texts.
    pub data: String,
}

impl NewRecord {
    pub fn new(key: impl Into<String>, kind: EventType, data: &Value) -> Self {
        NewRecord { key: key.into(), kind, data: data.to_string() }
    }
}

/// A stored event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub seq: i64,
    /// Unix milliseconds, the gateway's clock.
    pub time: i64,
    pub kind: EventType,
    /// JSON text.
    pub data: String,
}

/// How much one read may bring.
#[derive(Clone, Copy, Debug)]
pub struct PageLimit {
    pub events: usize,
    pub bytes: usize,
}

impl PageLimit {
    /// What a stream takes at a time.
    pub const STREAM: PageLimit = PageLimit { events: 256, bytes: 256 * 1024 };
}

/// One read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Numbers from..=to were asked for and cannot be served any more.
    pub gap: Option<(i64, i64)>,
    pub records: Vec<Record>,
    /// Number of the log's last event when this was read.
    pub last: i64,
    /// Nothing will follow `last`.
    pub closed: bool,
}

/// What is known of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogState {
    pub last: i64,
    pub closed: bool,
    /// Events of the sandbox that its quota has dropped.
    pub dropped: i64,
}
