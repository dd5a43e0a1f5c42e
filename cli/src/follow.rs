//! The events of a run, each once and in order, over as many connections as it takes: a cut one, a gateway that starts
//! again and an API server's time limit are resumed from the last number seen.

use std::io::Write;
use std::time::Duration;

use agentrun_protocol::event::EventType;
use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::cluster::Fault;
use crate::door::Door;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::runs;

/// A line that is longer is no event of ours: its data are at most 64 KiB, and JSON's escapes make at most six of one.
const MAX_LINE: usize = 1024 * 1024;
/// A living stream says so every 15 s.
const SILENCE: Duration = Duration::from_secs(45);
/// The first wait before another try, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// How long a gateway may be away while its run goes on.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// How long after a run's end its events may be unavailable.
const PATIENCE_AFTER_END: Duration = Duration::from_secs(30);

/// One event, with the line as it came.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub seq: i64,
    pub time: String,
    /// `None`: a type of a newer gateway, whose name is in `type_name`.
    pub kind: Option<EventType>,
    pub type_name: String,
    pub data: Value,
    pub line: String,
}

/// What a line is.
#[derive(Debug, PartialEq)]
enum Line {
    Event(Event),
    /// The stream ends before the log does.
    Farewell,
    /// A sign of life.
    Nothing,
}

#[derive(Deserialize)]
struct Raw {
    seq: Option<i64>,
    #[serde(default)]
    time: String,
    #[serde(rename = "type", default)]
    kind: Value,
    #[serde(default)]
    data: Value,
    error: Option<Value>,
}

fn parse(line: &[u8]) -> Result<Line, Fault> {
    let text = std::str::from_utf8(line).map_err(|_| Fault::Garbled("a line is not UTF-8".into()))?.trim();
    if text.is_empty() {
        return Ok(Line::Nothing);
    }
    let raw: Raw = serde_json::from_str(text).map_err(|error| Fault::Garbled(format!("a line is no event: {error}")))?;
    let Some(seq) = raw.seq else {
        return if raw.error.is_some() { Ok(Line::Farewell) } else { Err(Fault::Garbled("a line has no number".into())) };
    };
    let type_name = raw.kind.as_str().unwrap_or_default().to_owned();
    let kind = serde_json::from_value(raw.kind).ok();
    Ok(Line::Event(Event { seq, time: raw.time, kind, type_name, data: raw.data, line: text.to_owned() }))
}

/// Bytes as they come, lines as they are complete.
#[derive(Default)]
struct Lines {
    buffer: BytesMut,
    /// Up to here there is no line end.
    searched: usize,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        match self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
            Some(at) => {
                let line = self.buffer.split_to(self.searched + at).freeze();
                self.buffer.advance(1);
                self.searched = 0;
                Ok(Some(line))
            }
            None if self.buffer.len() > MAX_LINE => Err(Fault::Garbled(format!("a line is longer than {MAX_LINE} bytes"))),
            None => {
                self.searched = self.buffer.len();
                Ok(None)
            }
        }
    }
}

/// A follower of one run.
pub struct Follower<'a> {
    door: Door<'a>,
    /// The last number seen.
    after: i64,
    /// To the run's end rather than to what is there.
    follow: bool,
    stream: Option<Body>,
    lines: Lines,
    done: bool,
    /// Since when nothing could be had.
    failing_since: Option<Instant>,
    wait: Duration,
    ever_connected: bool,
    told: bool,
}

impl<'a> Follower<'a> {
    pub fn new(door: Door<'a>, after: i64, follow: bool) -> Self {
        Follower {
            door,
            after,
            follow,
            stream: None,
            lines: Lines::default(),
            done: false,
            failing_since: None,
            wait: FIRST_WAIT,
            ever_connected: false,
            told: false,
        }
    }

    /// The next event; `None` after the last. Safe to drop while it waits: nothing that was read is lost.
    pub async fn next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            while let Some(line) = self.lines.next().map_err(|fault| self.door.failure(fault, "reading events"))? {
                match parse(&line).map_err(|fault| self.door.failure(fault, "reading events"))? {
                    // What a resumed stream repeats is dropped.
                    Line::Event(event) if event.seq > self.after => {
                        self.after = event.seq;
                        self.healthy();
                        self.done = event.kind == Some(EventType::End);
                        return Ok(Some(event));
                    }
                    Line::Farewell => self.cut().await?,
                    Line::Event(_) | Line::Nothing => self.healthy(),
                }
            }
            if self.done {
                return Ok(None);
            }
            match &mut self.stream {
                None => self.connect().await?,
                Some(stream) => match tokio::time::timeout(SILENCE, stream.frame()).await {
                    Ok(Some(Ok(frame))) => {
                        if let Ok(data) = frame.into_data() {
                            self.lines.push(&data);
                        }
                    }
                    Ok(None) => self.ended().await?,
                    Ok(Some(Err(_))) | Err(_) => self.cut().await?,
                },
            }
        }
    }

    /// A stream came to its own end.
    async fn ended(&mut self) -> Result<(), Failure> {
        self.stream = None;
        if !self.follow {
            self.lines.push(b"\n"); // a last line without an end
            self.done = true;
            return Ok(());
        }
        // Of a log that is complete we have seen `end`; a cut in the middle of a line leaves a part of it.
        self.cut().await
    }

    /// A stream broke. What is left of a line comes again.
    async fn cut(&mut self) -> Result<(), Failure> {
        self.stream = None;
        self.lines = Lines::default();
        self.pause(None).await
    }

    async fn connect(&mut self) -> Result<(), Failure> {
        let opened = if self.follow { self.door.follow(self.after).await } else { self.door.events(self.after).await };
        match opened {
            Ok(response) => {
                self.lines = Lines::default();
                self.stream = Some(response.into_body());
                self.ever_connected = true;
                Ok(())
            }
            Err(fault) => {
                let missing_run = matches!(&fault, Fault::Refused(refusal) if refusal.from_gateway && refusal.status == 404);
                let passing = fault.is_passing() || (fault.gateway_absent() && self.ever_connected) || missing_run;
                if passing { self.pause(Some(fault)).await } else { Err(self.door.failure(fault, "reading events")) }
            }
        }
    }

    /// Wait before another try, if there is still something to wait for.
    async fn pause(&mut self, fault: Option<Fault>) -> Result<(), Failure> {
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        let patience = match runs::find(self.door.cluster, self.door.run).await {
            Ok(None) => {
                return Err(match self.ever_connected {
                    true => Failure::new(Exit::NotSubmitted, format!("AgentRun {} was deleted", self.door.run)),
                    false => runs::absent(self.door.cluster, self.door.run),
                });
            }
            // A gateway that was never reached is not waited for as long as one that is away for a moment.
            Ok(Some(run)) if runs::ended(&run).is_some() || !(self.follow || self.ever_connected) => PATIENCE_AFTER_END,
            Ok(Some(_)) | Err(_) => PATIENCE,
        };
        if since.elapsed() > patience {
            let fault = fault.unwrap_or_else(|| Fault::Unreachable("the stream is cut again and again".into()));
            return Err(self.door.failure(fault, "reading events"));
        }
        if since.elapsed() > LONGEST_WAIT && !self.told {
            self.told = true;
            let why = fault.map_or_else(|| "the stream was cut".to_owned(), |fault| self.door.failure(fault, "reading events").message);
            // Nobody to tell if this fails.
            let _ = writeln!(std::io::stderr(), "{}; trying again, the run goes on", crate::visible::line(&why));
        }
        tokio::time::sleep(self.wait).await;
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        Ok(())
    }

    fn healthy(&mut self) {
        self.failing_since = None;
        self.wait = FIRST_WAIT;
        self.told = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_events_signs_of_life_or_farewells() {
        let event = |line: &str| match parse(line.as_bytes()) {
            Ok(Line::Event(event)) => event,
            other => unreachable!("{line}: {other:?}"),
        };
        let step = event(r#"{"seq":5,"time":"t","type":"step","data":{"step":1}}"#);
        assert_eq!((step.seq, step.kind, step.data["step"].as_i64()), (5, Some(EventType::Step), Some(1)));
        let newer = event(r#"{"seq":6,"time":"t","type":"checkpoint","data":{}}"#);
        assert_eq!((newer.kind, newer.type_name.as_str()), (None, "checkpoint"));
        assert_eq!(parse(b"").expect("a line"), Line::Nothing);
        assert_eq!(parse(b"{\"error\":{\"code\":\"reader_too_slow\",\"message\":\"x\"}}").expect("a line"), Line::Farewell);
        for bad in ["{", "[]", "{\"data\":1}", "x"] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(parse(b"\xff").is_err());
    }

    #[test]
    fn lines_are_found_however_the_bytes_are_cut() {
        let text = b"{\"a\":1}\n\n{\"b\":\"\xc3\xbc\"}\nrest";
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let mut seen = Vec::new();
            for piece in text.chunks(size) {
                lines.push(piece);
                while let Some(line) = lines.next().expect("short lines") {
                    seen.push(line);
                }
            }
            assert_eq!(seen, [&text[..7], b"", &text[9..19]], "pieces of {size}");
        }
        let mut lines = Lines::default();
        lines.push(&vec![b'x'; MAX_LINE + 1]);
        assert!(lines.next().is_err());
    }
}
