//! What an agent prints, as events: by the rules of its template where it prints JSON, else as it is. Bounded, and kept whole
//! at its beginning and end for an artifact.

use std::sync::Arc;

use agentrun_crds::agent_template::{LineEvent, Output as Form, OutputFormat, OutputRule};
use agentrun_protocol::{event::EventType, executor::exec_output::Stream};
use serde_json::{Value, json};

use super::{field, lines::Lines, trouble::Calls};
use crate::{
    clip::{HeadAndTail, clip, first_chars},
    events::{Events, cut},
    executor::Output as _,
    live_output::LiveOutput,
};

/// What an event shows of a text.
const SHOWN_BYTES: usize = 8 * 1024;
/// Events of one agent, besides its plain output.
const MAX_EVENTS: u32 = 10_000;
/// Longest message.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// What is kept for the artifact.
const KEPT_BYTES: usize = 2 * 1024 * 1024;

/// Takes what comes, makes events of it.
pub struct Heard<'f> {
    form: &'f Form,
    events: Events,
    calls: Arc<Calls>,
    plain: LiveOutput,
    lines: Lines,
    kept: HeadAndTail,
    emitted: u32,
    /// A message of which more may come.
    begun: String,
    /// The last thing that the agent said.
    pub message: Option<String>,
    /// The agent said itself that it failed.
    pub failure: Option<String>,
}

impl<'f> Heard<'f> {
    pub fn new(form: &'f Form, events: &Events, calls: Arc<Calls>) -> Self {
        Heard {
            form,
            events: events.clone(),
            calls,
            plain: LiveOutput::new(events, SHOWN_BYTES),
            lines: Lines::default(),
            kept: HeadAndTail::new(KEPT_BYTES),
            emitted: 0,
            begun: String::new(),
            message: None,
            failure: None,
        }
    }

    pub fn data(&mut self, stream: Stream, data: &[u8]) {
        self.kept.push(data);
        if stream == Stream::Stderr || self.form.format == OutputFormat::Text {
            self.plain.data(stream, data);
            return;
        }
        let mut lines = std::mem::take(&mut self.lines);
        lines.push(data, |line| self.line(line));
        self.lines = lines;
    }

    /// Called a few times a second.
    pub fn tick(&mut self) {
        self.plain.tick();
    }

    /// The end: what was kept, for the artifact.
    pub fn finish(mut self) -> Finished {
        let mut lines = std::mem::take(&mut self.lines);
        lines.finish(|line| self.line(line));
        self.end_message();
        if lines.dropped > 0 {
            self.events.note(format!("{} lines of the agent's output were too long to be read", lines.dropped));
        }
        let (said, _) = self.plain.finish(0);
        // What an agent says that prints text is the end of what it printed.
        let message = self.message.unwrap_or_else(|| if self.form.format == OutputFormat::Text { said } else { String::new() });
        Finished { message, failure: self.failure, log: self.kept.text(0).0 }
    }

    fn line(&mut self, line: &[u8]) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        match serde_json::from_slice::<Value>(line) {
            Ok(value) if value.is_object() => {
                let form = self.form;
                form.rules.iter().for_each(|rule| self.judge(rule, &value));
            }
            // Not what was promised, so for people to see.
            _ => {
                self.plain.data(Stream::Stdout, line);
                self.plain.data(Stream::Stdout, b"\n");
            }
        }
    }

    fn judge(&mut self, rule: &OutputRule, line: &Value) {
        if !field::holds(line, &rule.when) {
            return;
        }
        match &rule.each {
            None => self.emit(rule, line),
            Some(each) => field::values(line, each)
                .into_iter()
                .filter(|value| field::holds(value, &rule.with))
                .for_each(|value| self.emit(rule, value)),
        }
    }

    /// What has begun is whole.
    fn end_message(&mut self) {
        let said = std::mem::take(&mut self.begun);
        if !said.trim().is_empty() {
            let data = json!({"text": clip(&said, 2 * SHOWN_BYTES)});
            self.message = Some(said);
            self.count(EventType::Message, data);
        }
    }

    fn emit(&mut self, rule: &OutputRule, value: &Value) {
        if !rule.partial {
            self.end_message();
        }
        let text = |path: &Option<String>| path.as_ref().map(|path| field::text(value, path)).unwrap_or_default();
        let tool = || first_chars(&text(&rule.tool), 64);
        let step = self.calls.steps();
        let (kind, data) = match rule.event {
            LineEvent::Message => {
                let said = text(&rule.text);
                if self.begun.len() < MAX_MESSAGE_BYTES {
                    self.begun.push_str(&said);
                }
                if !rule.partial {
                    self.end_message();
                }
                return;
            }
            LineEvent::ToolCall => {
                let found = rule.arguments.as_ref().map(|path| field::values(value, path)).unwrap_or_default();
                let mut arguments = found.first().copied().cloned().unwrap_or_default();
                cut(&mut arguments, SHOWN_BYTES / 2);
                (EventType::ToolCall, json!({"step": step, "tool": tool(), "arguments": arguments}))
            }
            LineEvent::ToolResult => {
                let output = text(&rule.text);
                let shown = clip(&output, SHOWN_BYTES);
                let data = json!({"step": step, "tool": tool(), "ok": !matches!(text(&rule.failed).as_str(), "true" | "error"), "output": shown, "truncated": shown.len() != output.len()});
                (EventType::ToolResult, data)
            }
            LineEvent::Failure => {
                let said = first_chars(&text(&rule.text), 1_000);
                self.failure = Some(said.clone());
                (EventType::Note, json!({"text": format!("the agent says that it failed: {said}")}))
            }
        };
        self.count(kind, data);
    }

    fn count(&mut self, kind: EventType, data: Value) {
        self.emitted += 1;
        match self.emitted {
            0..=MAX_EVENTS => self.events.emit(kind, data),
            n if n == MAX_EVENTS + 1 => {
                self.events.note(format!("more than {MAX_EVENTS} events of the agent; the rest is in the artifact only"))
            }
            _ => {}
        }
    }
}

/// What came of listening.
pub struct Finished {
    pub message: String,
    pub failure: Option<String>,
    pub log: String,
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn hear(form: Value, stdout: &str) -> (Vec<String>, Finished) {
        let form: Form = serde_json::from_value(form).unwrap();
        let printed = Arc::new(Mutex::new(Vec::new()));
        let sink = printed.clone();
        let events = Events::new(Arc::new(move |line| sink.lock().unwrap().push(line.to_owned())));
        let mut heard = Heard::new(&form, &events, Arc::new(Calls::new(events.clone(), 5)));
        for chunk in stdout.as_bytes().chunks(7) {
            heard.data(Stream::Stdout, chunk);
        }
        let finished = heard.finish();
        (printed.lock().unwrap().clone(), finished)
    }

    #[test]
    fn lines_become_events_by_the_rules() {
        let form = json!({"format": "JSONLines", "rules": [
            {"when": [{"path": "type", "equals": "assistant"}], "each": "content[*]", "with": [{"path": "type", "equals": "text"}], "event": "Message", "text": "text"},
            {"when": [{"path": "type", "equals": "assistant"}], "each": "content[*]", "with": [{"path": "type", "equals": "use"}], "event": "ToolCall",
             "tool": "name", "arguments": "input"},
            {"when": [{"path": "type", "equals": "result"}], "event": "ToolResult", "tool": "name", "text": "out", "failed": "error"},
            {"when": [{"path": "type", "equals": "piece"}], "event": "Message", "text": "text", "partial": true},
            {"when": [{"path": "type", "equals": "end"}, {"path": "error", "equals": "true"}], "event": "Failure", "text": "why"},
        ]});
        let (printed, finished) = hear(
            form,
            "{\"type\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"I look.\"},{\"type\":\"use\",\"name\":\"Bash\",\"input\":{\"c\":\"ls\"}}]}\n\
             {\"type\":\"result\",\"name\":\"Bash\",\"out\":\"nothing\",\"error\":true}\n\
             {\"type\":\"piece\",\"text\":\"It is \"}\n{\"type\":\"delta\"}\n{\"type\":\"piece\",\"text\":\"done.\"}\nnot json\n[1]\n\n{\"type\":\"end\",\"error\":false}\n{\"type\":\"end\",\"error\":true,\"why\":\"no credit\"}",
        );
        let expected = [
            "agent: I look.",
            "Bash {\"c\":\"ls\"}",
            "Bash failed: nothing",
            "agent: It is done.",
            "the agent says that it failed: no credit",
            "  | not json",
            "  | [1]",
        ];
        assert_eq!(printed, expected);
        assert_eq!((finished.message.as_str(), finished.failure.as_deref()), ("It is done.", Some("no credit")));
        assert!(finished.log.contains("\"delta\""));
    }

    #[test]
    fn text_is_shown_as_it_is() {
        let (printed, finished) = hear(json!({"format": "Text"}), "{\"type\":1}\nDone.\n");
        assert_eq!(printed, ["  | {\"type\":1}", "  | Done."]);
        assert_eq!(finished.message, "{\"type\":1}\nDone.\n");
    }
}
