//! Events on their way to the gateway: queued in bounded memory, sent in order with keys so that a repeat is harmless, and
//! printed for `kubectl logs`. Live output goes first when the queue is full, and how much went is said.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use agentrun_protocol::{
    event::{AppendRequest, AppendResponse, EventType, MAX_BATCH, MAX_DATA_BYTES, NewEvent},
    routes,
};
use http::Method;
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use crate::{
    clip::{clip, printable},
    gateway::{CallError, Gateway},
};

/// Memory of the queue. Above it live output is dropped, above twice it everything but the newest.
const QUEUE_BYTES: usize = 4 * 1024 * 1024;
const BATCH_BYTES: usize = 256 * 1024;
/// A gateway that does not answer is asked again for so long before the batch is given to another round.
const ROUND: Duration = Duration::from_secs(30);
/// What of one event is printed.
const PRINTED_BYTES: usize = 16 * 1024;
const PAUSE: Duration = Duration::from_secs(1);

/// Takes lines that are safe for a terminal. It must not fail.
pub type Lines = Arc<dyn Fn(&str) + Send + Sync>;

/// A handle to the queue.
#[derive(Clone)]
pub struct Events(Arc<Shared>);

struct Shared {
    lines: Lines,
    queue: Mutex<Queue>,
    changed: Notify,
    drained: Notify,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(NewEvent, usize)>,
    bytes: usize,
    next_key: u64,
    dropped: u64,
    in_flight: bool,
    /// The gateway takes no more, ever.
    closed: bool,
}

impl Events {
    pub fn new(lines: Lines) -> Self {
        Events(Arc::new(Shared { lines, queue: Mutex::default(), changed: Notify::new(), drained: Notify::new() }))
    }

    /// Print an event and queue it. Data that is too large is cut, its longest texts first.
    pub fn emit(&self, kind: EventType, mut data: Value) {
        for line in clip(&in_words(kind, &data), PRINTED_BYTES).split('\n') {
            let mark = if kind == EventType::Output { "  | " } else { "" };
            (self.0.lines)(&format!("{mark}{}", printable(line)));
        }
        let size = fit(&mut data);
        let mut queue = self.queue();
        if queue.closed {
            return;
        }
        queue.next_key += 1;
        let key = format!("runner-{}", queue.next_key);
        queue.bytes += size;
        queue.waiting.push_back((NewEvent { key, kind, data }, size));
        queue.make_room();
        drop(queue);
        self.0.changed.notify_one();
    }

    /// Only print.
    pub fn say(&self, text: &str) {
        (self.0.lines)(&printable(text));
    }

    /// A remark of the runner's own.
    pub fn note(&self, text: impl Into<String>) {
        self.emit(EventType::Note, json!({"text": text.into()}));
    }

    /// Send what comes, until the gateway refuses for good.
    pub async fn send_all(self, gateway: Gateway) {
        loop {
            let batch = self.take().await;
            let open = self.deliver(&gateway, batch).await;
            self.queue().end(open);
            self.0.drained.notify_waiters();
            if !open {
                return;
            }
        }
    }

    /// Wait until all that was emitted before is acknowledged, at most so long. False: some is not.
    pub async fn flush(&self, patience: Duration) -> bool {
        let drained = async {
            loop {
                let notified = self.0.drained.notified();
                {
                    let queue = self.queue();
                    if queue.waiting.is_empty() && !queue.in_flight {
                        return !queue.closed;
                    }
                }
                notified.await;
            }
        };
        timeout(patience, drained).await.unwrap_or(false)
    }

    async fn take(&self) -> Vec<NewEvent> {
        loop {
            let changed = self.0.changed.notified();
            if let Some(batch) = self.queue().begin() {
                return batch;
            }
            changed.await;
        }
    }

    /// False: the run's token is no longer good.
    async fn deliver(&self, gateway: &Gateway, batch: Vec<NewEvent>) -> bool {
        let mut pending: VecDeque<AppendRequest> = VecDeque::from([AppendRequest { events: batch }]);
        while let Some(request) = pending.pop_front() {
            let until = Instant::now() + ROUND;
            match gateway.json::<AppendResponse>(Method::POST, routes::EVENTS, Some(&request), until).await {
                Ok(_) => {}
                Err(error) if error.is_transient() => {
                    pending.push_front(request);
                    sleep(PAUSE).await;
                }
                Err(CallError::Refused { status: 401 | 403, .. }) => return false,
                // One of them is not acceptable: the others still go.
                Err(_) if request.events.len() > 1 => {
                    for event in request.events.into_iter().rev() {
                        pending.push_front(AppendRequest { events: vec![event] });
                    }
                }
                Err(error) => self.say(&format!("an event was lost: {error}")),
            }
        }
        true
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// The batch has been delivered, or nothing will ever be again.
    fn end(&mut self, open: bool) {
        self.in_flight = false;
        if !open {
            self.closed = true;
            self.bytes = 0;
            self.waiting.clear();
        }
    }

    fn make_room(&mut self) {
        if self.bytes > QUEUE_BYTES {
            let (mut dropped, mut freed) = (0, 0);
            self.waiting.retain(|(event, size)| {
                let keep = event.kind != EventType::Output;
                if !keep {
                    dropped += 1;
                    freed += size;
                }
                keep
            });
            self.bytes -= freed;
            self.dropped += dropped;
        }
        while self.bytes > 2 * QUEUE_BYTES
            && let Some((_, size)) = self.waiting.pop_front()
        {
            self.bytes -= size;
            self.dropped += 1;
        }
    }

    /// The next batch, if there is one, which is under way from now on.
    fn begin(&mut self) -> Option<Vec<NewEvent>> {
        let batch = self.batch();
        self.in_flight = !batch.is_empty();
        self.in_flight.then_some(batch)
    }

    fn batch(&mut self) -> Vec<NewEvent> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        if self.dropped > 0 {
            self.next_key += 1;
            let text = format!("{} events were dropped because the gateway did not take them in time", self.dropped);
            batch.push(NewEvent { key: format!("runner-{}", self.next_key), kind: EventType::Note, data: json!({"text": text}) });
            self.dropped = 0;
        }
        while batch.len() < MAX_BATCH
            && let Some((event, size)) = self.waiting.pop_front_if(|(_, size)| bytes == 0 || bytes + *size <= BATCH_BYTES)
        {
            self.bytes -= size;
            bytes += size;
            batch.push(event);
        }
        batch
    }
}

/// Cut texts until the data fits an event; its size in bytes.
fn fit(data: &mut Value) -> usize {
    let mut most = 32 * 1024;
    loop {
        let size = data.to_string().len();
        if size <= MAX_DATA_BYTES {
            return size;
        }
        if most < 16 {
            *data = json!({"text": "[too large to show]"});
            return data.to_string().len();
        }
        cut(data, most);
        most /= 2;
    }
}

/// Cut every text within a value to `max` bytes.
pub fn cut(value: &mut Value, max: usize) {
    match value {
        Value::String(text) if text.len() > max => *text = clip(text, max).into_owned(),
        Value::Array(values) => values.iter_mut().for_each(|value| cut(value, max)),
        Value::Object(fields) => fields.values_mut().for_each(|value| cut(value, max)),
        _ => {}
    }
}

/// The same for people, one or more lines.
fn in_words(kind: EventType, data: &Value) -> String {
    let text = |name: &str| data[name].as_str().unwrap_or_default();
    match kind {
        EventType::Step => format!("step {} of {}", data["step"], data["maxSteps"]),
        EventType::Message => format!("agent: {}", text("text")),
        EventType::ToolCall => format!("{} {}", text("tool"), clip(&data["arguments"].to_string(), 400)),
        EventType::ToolResult if data["ok"] == true => format!("{} done", text("tool")),
        EventType::ToolResult => format!("{} failed: {}", text("tool"), clip(text("output"), 400)),
        EventType::Output => text("text").trim_end_matches('\n').to_owned(),
        EventType::CheckStarted => format!("check {}: {}", text("name"), data["argv"]),
        EventType::CheckFinished => format!("check {}: exit code {}", text("name"), data["exitCode"]),
        _ => text("text").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(queue: &Queue, kind: EventType) -> usize {
        queue.waiting.iter().filter(|(event, _)| event.kind == kind).count()
    }

    #[test]
    fn memory_is_bounded_and_output_goes_first() {
        let events = Events::new(Arc::new(|_| {}));
        let text = "x".repeat(60_000);
        for _ in 0..60 {
            events.emit(EventType::Output, json!({"stream": "stdout", "text": text}));
        }
        events.note("kept");
        for _ in 0..20 {
            events.emit(EventType::Output, json!({"stream": "stdout", "text": text}));
        }
        {
            let queue = events.queue();
            assert!(queue.bytes <= QUEUE_BYTES && queue.dropped > 0);
            assert_eq!(kinds(&queue, EventType::Note), 1);
        }
        for _ in 0..200 {
            events.emit(EventType::Message, json!({"text": text}));
        }
        let mut queue = events.queue();
        assert!(queue.bytes <= 2 * QUEUE_BYTES);
        assert_eq!(kinds(&queue, EventType::Output), 0);
        let batch = queue.batch();
        assert!(batch[0].data["text"].as_str().unwrap().contains("events were dropped"));
        assert!(batch.len() > 1 && batch.len() <= MAX_BATCH);
    }

    #[test]
    fn data_fits_an_event_whatever_it_holds() {
        for mut data in [
            json!({"text": "\u{1}".repeat(1_000_000)}),
            json!({"arguments": {"content": "é".repeat(200_000), "path": "a"}}),
            json!({"arguments": vec!["x".repeat(100); 5000]}),
            json!({"text": "short"}),
        ] {
            let size = fit(&mut data);
            assert!(size <= MAX_DATA_BYTES && size == data.to_string().len());
        }
    }
}
