//! How events look on the wire: NDJSON lines or SSE frames. Content cannot break a frame: it is JSON on one line, with the
//! line separators of JavaScript escaped too, and ids are numbers.

use std::fmt::Write;

use agentrun_protocol::event::EventType;
use serde_json::json;

use crate::store::{Page, Record};

/// The two forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Ndjson,
    Sse,
}

impl Form {
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Form::Ndjson => "application/x-ndjson",
            Form::Sse => "text/event-stream",
        }
    }

    /// A gap, if there is one, then the events; and the number of the last of them.
    pub(super) fn page(self, page: &Page, now: i64) -> (String, Option<i64>) {
        let mut text = String::new();
        let mut last = None;
        if let Some((from, to)) = page.gap {
            let data = json!({"from": from, "to": to, "reason": "deleted by the retention of ended runs"}).to_string();
            self.record(&mut text, &Record { seq: to, time: now, kind: EventType::Gap, data });
            last = Some(to);
        }
        for record in &page.records {
            self.record(&mut text, record);
            last = Some(record.seq);
        }
        (text, last)
    }

    fn record(self, text: &mut String, record: &Record) {
        let time = jiff::Timestamp::from_millisecond(record.time).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        let kind = json!(record.kind);
        let data = record.data.replace('\u{85}', "\\u0085").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029");
        let line = format!(r#"{{"seq":{},"time":"{time:.3}","type":{kind},"data":{data}}}"#, record.seq);
        // Writing to a String cannot fail.
        let _ = match self {
            Form::Ndjson => writeln!(text, "{line}"),
            Form::Sse => writeln!(text, "id: {}\nevent: {}\ndata: {line}\n", record.seq, kind.as_str().unwrap_or_default()),
        };
    }

    /// Shows that the connection lives. NDJSON readers skip empty lines.
    pub(super) fn heartbeat(self) -> &'static str {
        match self {
            Form::Ndjson => "\n",
            Form::Sse => ": keep-alive\n\n",
        }
    }

    /// Why the stream ends before the log does, and how to go on. It has no `seq`, so it is no event.
    pub(super) fn farewell(self, code: &str, message: &str, after: i64) -> String {
        match self {
            Form::Ndjson => format!("{}\n", json!({"error": {"code": code, "message": format!("{message}; resume with ?after={after}")}})),
            Form::Sse => format!(": {code}: {message}; resume with Last-Event-ID: {after}\n\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn hostile_content_stays_within_its_frame() {
        let nasty = "a\n\ndata: {}\nid: 99\r\revent: end\u{2028}\u{2029}\u{0}\u{85}\u{feff}</script>";
        let page = Page {
            gap: Some((1, 4)),
            records: vec![Record {
                seq: 5,
                time: 1_700_000_000_123,
                kind: EventType::ToolResult,
                data: json!({ nasty: nasty }).to_string(),
            }],
            last: 5,
            closed: false,
        };
        let (text, last) = Form::Ndjson.page(&page, 0);
        assert_eq!(last, Some(5));
        let lines: Vec<Value> = text.split_terminator('\n').map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
        assert_eq!(
            lines[0],
            json!({"seq": 4, "time": "1970-01-01T00:00:00.000Z", "type": "gap", "data": {"from": 1, "to": 4, "reason": "deleted by the retention of ended runs"}})
        );
        assert_eq!(lines[1], json!({"seq": 5, "time": "2023-11-14T22:13:20.123Z", "type": "tool_result", "data": {nasty: nasty}}));
        let (text, _) = Form::Sse.page(&page, 0);
        assert!(!text.contains(['\r', '\u{85}', '\u{2028}', '\u{2029}', '\u{0}']));
        let frames: Vec<Vec<&str>> = text.split_terminator("\n\n").map(|frame| frame.split('\n').collect()).collect();
        assert_eq!(frames.len(), 2);
        assert_eq!((frames[1][0], frames[1][1], frames[1].len()), ("id: 5", "event: tool_result", 3));
        assert_eq!(serde_json::from_str::<Value>(&frames[1][2]["data: ".len()..]).expect("JSON"), lines[1]);
    }
}
