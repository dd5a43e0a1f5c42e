//! Events as plain lines for people. Whatever a run says is made visible; text of several lines is indented beneath a bar,
//! so that it cannot pass for a line of ours.

use agentrun_protocol::event::EventType;
use serde_json::Value;

use crate::follow::Event;
use crate::output::{Color, Output};
use crate::{hint, visible};

/// Most lines shown of one text.
const MOST_LINES: usize = 200;
/// Most characters of a line.
const MOST_CHARS: usize = 2_000;

/// A story told event by event: what was streamed while a command ran is not said again with its result.
#[derive(Default)]
pub struct Teller {
    streamed: bool,
}

impl Teller {
    /// The lines of the next event.
    pub fn lines(&mut self, event: &Event, run: &str, output: &Output) -> Vec<String> {
        match event.kind {
            Some(EventType::ToolCall) => self.streamed = false,
            Some(EventType::Output) => self.streamed = true,
            Some(EventType::ToolResult) if self.streamed && event.data["tool"] == "run_command" => {
                let mut brief = event.clone();
                let said = event.data["output"].as_str().unwrap_or_default();
                // How it ended stands in the first line.
                brief.data["output"] = said.split('\n').next().unwrap_or_default().into();
                return lines(&brief, run, output);
            }
            _ => {}
        }
        lines(event, run, output)
    }
}

/// The lines of one event: the first with time and label, the others beneath it. `approve` names the command for approvals.
fn lines(event: &Event, run: &str, output: &Output) -> Vec<String> {
    let data = &event.data;
    let text = |key: &str| data[key].as_str().unwrap_or_default();
    let number = |key: &str| data[key].as_i64().unwrap_or_default();
    let Some(kind) = event.kind else {
        return vec![row(event, output, Color::Dim, &event.type_name, &data.to_string())];
    };
    match kind {
        EventType::Phase => {
            let mut words = text("phase").to_owned();
            for key in ["reason", "message"] {
                if !text(key).is_empty() && text(key) != text("phase") {
                    words.push_str(&format!(", {}", text(key)));
                }
            }
            vec![row(event, output, Color::Cyan, "phase", &words)]
        }
        EventType::ModelCall => {
            let status = if data["status"].is_string() { text("status").to_owned() } else { data["status"].to_string() };
            let words = format!(
                "{} {status}, {} ms, {} + {} tokens, request {} of {}",
                text("model"),
                number("durationMs"),
                number("inputTokens"),
                number("outputTokens"),
                number("requestsSpent"),
                number("requestsLimit")
            );
            vec![row(event, output, Color::Dim, "model", &words)]
        }
        EventType::Budget => {
            let mut words = text("gate").to_owned();
            if !text("dimension").is_empty() {
                words.push_str(&format!(": {}", text("dimension")));
            }
            if !text("until").is_empty() {
                words.push_str(&format!(" of the namespace's {} until {}", text("namespacePeriod").to_lowercase(), text("until")));
            }
            vec![row(event, output, Color::Yellow, "budget", &words)]
        }
        EventType::Approval => {
            let mut words = format!("{} {}: {} {}", number("id"), text("state"), text("kind"), text("summary"));
            if !text("decidedBy").is_empty() {
                words.push_str(&format!(", by {}", text("decidedBy")));
            }
            if text("scope") == "session" {
                words.push_str(", for this run's session");
            }
            if text("outcome") == "unknown" {
                words.push_str(", and cut short: what came of it is unknown, and it is not tried again");
            }
            if !text("reason").is_empty() {
                words.push_str(&format!(", {:?}", text("reason")));
            }
            let mut lines = vec![row(event, output, Color::Yellow, "approval", &words)];
            if text("state") == "pending" {
                let id = number("id");
                lines.push(beneath(&hint::complete(&format!("kubectl agentrun approve {run} {id}, or deny {run} {id}")), output));
            }
            lines
        }
        EventType::Gap => {
            vec![row(
                event,
                output,
                Color::Yellow,
                "gap",
                &format!("{} to {} are missing: {}", number("from"), number("to"), text("reason")),
            )]
        }
        EventType::Truncated => {
            vec![row(event, output, Color::Yellow, "cut", &format!("{} is over its quota, {} dropped", text("type"), data["dropped"]))]
        }
        EventType::Result => {
            let color = if text("verdict") == "Succeeded" { Color::Green } else { Color::Red };
            vec![row(event, output, color, "result", &format!("{}: {}", text("verdict"), text("message")))]
        }
        EventType::End => {
            let color = if text("phase") == "Succeeded" { Color::Green } else { Color::Red };
            let reason = if text("reason") == text("phase") || text("reason").is_empty() { "" } else { text("reason") };
            vec![row(event, output, color, "end", format!("{} {reason}", text("phase")).trim_end())]
        }
        EventType::Step => vec![row(event, output, Color::Bold, "step", &format!("{} of {}", number("step"), number("maxSteps")))],
        EventType::Message => spoken(event, output, "says", text("text")),
        EventType::Note => spoken(event, output, "note", text("text")),
        EventType::ToolCall => {
            vec![row(event, output, Color::Cyan, "tool", &format!("{} {}", text("tool"), arguments(&data["arguments"])))]
        }
        EventType::ToolResult => {
            let words = if data["ok"].as_bool().unwrap_or_default() { "done" } else { "failed" };
            let mut lines = vec![row(event, output, Color::Dim, "tool", &format!("{} {words}", text("tool")))];
            lines.extend(body(text("output"), output));
            lines
        }
        EventType::Output => body(text("text"), output),
        EventType::CheckStarted => vec![row(event, output, Color::Cyan, "check", &format!("{}: {}", text("name"), argv(&data["argv"])))],
        EventType::CheckFinished => {
            let code = data["exitCode"].as_i64();
            let (color, words) = match code {
                Some(0) => (Color::Green, "passed".to_owned()),
                Some(code) => (Color::Red, format!("exit status {code}")),
                None => (Color::Red, "could not be run, or was ended".to_owned()),
            };
            let mut lines = vec![row(event, output, color, "check", &format!("{}: {words}, {} ms", text("name"), number("durationMs")))];
            if code != Some(0) {
                lines.extend(body(text("output"), output));
            }
            lines
        }
    }
}

/// A command as one would type it.
pub fn argv(value: &Value) -> String {
    shell_words::join(value.as_array().into_iter().flatten().map(|word| word.as_str().unwrap_or("?")))
}

fn arguments(value: &Value) -> String {
    // The runner sends what the model wrote: an object, or text that should have been one.
    let parsed = value.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let value = parsed.as_ref().unwrap_or(value);
    if value["argv"].is_array() { argv(&value["argv"]) } else { value.as_str().map_or_else(|| value.to_string(), str::to_owned) }
}

fn spoken(event: &Event, output: &Output, label: &str, text: &str) -> Vec<String> {
    let text = text.trim_end();
    if !text.contains('\n') {
        return vec![row(event, output, Color::Bold, label, text)];
    }
    let mut lines = vec![row(event, output, Color::Bold, label, "")];
    lines.extend(body(text, output));
    lines
}

fn row(event: &Event, output: &Output, color: Color, label: &str, words: &str) -> String {
    let time = event.time.get(11..19).filter(|time| time.is_ascii()).unwrap_or("--:--:--");
    let words = visible::cut(&visible::line(words), MOST_CHARS);
    let label = output.paint(color, &format!("{:<8}", visible::line(label)));
    format!("{} {label} {words}", output.paint(Color::Dim, &visible::line(time))).trim_end().to_owned()
}

fn beneath(words: &str, output: &Output) -> String {
    format!("         {} {}", output.paint(Color::Dim, "│"), visible::cut(&visible::line(words), MOST_CHARS))
}

/// Text of several lines beneath a bar; tabs become spaces, so that columns hold.
fn body(text: &str, output: &Output) -> Vec<String> {
    let text = visible::block(text.trim_end_matches('\n'));
    if text.is_empty() {
        return Vec::new();
    }
    let all: Vec<&str> = text.split('\n').collect();
    let mut lines: Vec<String> = all.iter().take(MOST_LINES).map(|line| beneath(&line.replace('\t', "    "), output)).collect();
    if all.len() > MOST_LINES {
        lines.push(beneath(&format!("… {} more lines: kubectl agentrun events -o json", all.len() - MOST_LINES), output));
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::arguments::ColorChoice;

    fn event(kind: &str, data: Value) -> Event {
        Event {
            seq: 1,
            time: "2026-01-02T10:11:12.000Z".into(),
            kind: serde_json::from_value(json!(kind)).ok(),
            type_name: kind.into(),
            data,
            line: String::new(),
        }
    }

    #[test]
    fn each_type_has_its_line() {
        let output = Output::new(ColorChoice::Never);
        for (kind, data, expected) in [
            ("phase", json!({"phase": "Running"}), vec!["10:11:12 phase    Running"]),
            (
                "model_call",
                json!({"model": "small", "status": 200, "durationMs": 5, "inputTokens": 10, "outputTokens": 2, "requestsSpent": 1, "requestsLimit": 14}),
                vec!["10:11:12 model    small 200, 5 ms, 10 + 2 tokens, request 1 of 14"],
            ),
            (
                "approval",
                json!({"id": 3, "state": "pending", "kind": "run_command", "summary": "rm -rf build"}),
                vec!["10:11:12 approval 3 pending: run_command rm -rf build", "         │ kubectl agentrun approve r 3, or deny r 3"],
            ),
            (
                "approval",
                json!({"id": 3, "state": "denied", "kind": "k", "summary": "s", "decidedBy": "bob", "reason": "no"}),
                vec!["10:11:12 approval 3 denied: k s, by bob, \"no\""],
            ),
            (
                "approval",
                json!({"id": 3, "state": "consumed", "kind": "k", "summary": "s", "outcome": "unknown"}),
                vec!["10:11:12 approval 3 consumed: k s, and cut short: what came of it is unknown, and it is not tried again"],
            ),
            ("step", json!({"step": 1, "maxSteps": 12}), vec!["10:11:12 step     1 of 12"]),
            ("message", json!({"text": "one line\n"}), vec!["10:11:12 says     one line"]),
            ("message", json!({"text": "two\nlines"}), vec!["10:11:12 says", "         │ two", "         │ lines"]),
            (
                "tool_call",
                json!({"tool": "run_command", "arguments": {"argv": ["ls", "a b"]}}),
                vec!["10:11:12 tool     run_command ls 'a b'"],
            ),
            (
                "tool_result",
                json!({"tool": "t", "ok": false, "output": "a\n10:11:12 end      Succeeded\n"}),
                vec!["10:11:12 tool     t failed", "         │ a", "         │ 10:11:12 end      Succeeded"],
            ),
            (
                "check_finished",
                json!({"name": "unit", "exitCode": 0, "durationMs": 3, "output": "x"}),
                vec!["10:11:12 check    unit: passed, 3 ms"],
            ),
            (
                "check_finished",
                json!({"name": "unit", "exitCode": 1, "durationMs": 3, "output": "x"}),
                vec!["10:11:12 check    unit: exit status 1, 3 ms", "         │ x"],
            ),
            ("end", json!({"phase": "Failed", "reason": "ChecksFailed"}), vec!["10:11:12 end      Failed ChecksFailed"]),
            ("end", json!({"phase": "Succeeded", "reason": "Succeeded"}), vec!["10:11:12 end      Succeeded"]),
            ("novelty", json!({"a": 1}), vec!["10:11:12 novelty  {\"a\":1}"]),
        ] {
            assert_eq!(lines(&event(kind, data), "r", &output), expected, "{kind}");
        }
    }

    #[test]
    fn what_was_streamed_is_not_repeated() {
        let output = Output::new(ColorChoice::Never);
        let mut teller = Teller::default();
        let call = event("tool_call", json!({"tool": "run_command", "arguments": {"argv": ["ls"]}}));
        let streamed = event("output", json!({"stream": "stdout", "text": "a\n"}));
        let result = event("tool_result", json!({"tool": "run_command", "ok": true, "output": "exit code 0\na\n"}));
        let mut told = |events: &[&Event]| events.iter().flat_map(|event| teller.lines(event, "r", &output)).collect::<Vec<_>>();
        let (head, end) = ("10:11:12 tool     run_command ls", "10:11:12 tool     run_command done");
        assert_eq!(told(&[&call, &streamed, &result]), [head, "         │ a", end, "         │ exit code 0"]);
        assert_eq!(told(&[&call, &result]), [head, end, "         │ exit code 0", "         │ a"], "nothing was streamed");
    }

    #[test]
    fn hostile_text_stays_beneath_its_bar() {
        let output = Output::new(ColorChoice::Never);
        let nasty = "a\u{1b}[2J\r\u{202e}b\n\u{9b}c\u{2028}d\te";
        for kind in [
            "phase",
            "model_call",
            "approval",
            "gap",
            "truncated",
            "result",
            "end",
            "message",
            "tool_call",
            "tool_result",
            "output",
            "check_started",
            "check_finished",
            "note",
            nasty,
        ] {
            let data = json!({
                "phase": nasty, "reason": nasty, "message": nasty, "model": nasty, "status": nasty, "state": nasty, "kind": nasty,
                "summary": nasty, "decidedBy": nasty, "verdict": nasty, "text": nasty, "tool": nasty, "arguments": nasty,
                "output": nasty, "name": nasty, "argv": [nasty], "type": nasty, "dropped": nasty, "exitCode": 1,
            });
            let lines = lines(&event(kind, data), "r", &output);
            assert!(!lines.is_empty());
            for (number, line) in lines.iter().enumerate() {
                assert!(!line.chars().any(|c| c.is_control() || agentrun_crds::paths::is_invisible(c)), "{kind}: {line:?}");
                assert!(line.starts_with("10:11:12 ") && number == 0 || line.starts_with("         │ "), "{kind}: {line:?}");
            }
        }
        let long = "x\n".repeat(1_000);
        assert_eq!(lines(&event("output", json!({"text": long})), "r", &output).len(), MOST_LINES + 1);
    }
}
