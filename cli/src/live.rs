//! The live view of a run on a terminal: its events scroll by as plain lines, and beneath them a few lines say where it
//! stands and what waits for a person. Only those are drawn again.

use std::time::Duration;

use agentrun_crds::{AgentRun, quantity};
use agentrun_protocol::event::EventType;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::failure::Failure;
use crate::follow::Event;
use crate::output::{Color, Output, age};
use crate::{hint, visible};

/// Most waiting approvals shown.
const MOST_WAITING: usize = 5;
/// How often the clock moves.
pub const TICK: Duration = Duration::from_secs(1);

/// What is known of a run from its events.
#[derive(Default)]
pub struct State {
    name: String,
    phase: String,
    model: String,
    step: i64,
    max_steps: i64,
    requests: i64,
    max_requests: i64,
    cost: i64,
    max_cost: Option<i64>,
    /// Unix seconds.
    started: Option<i64>,
    /// `(id, what)` in the order asked.
    waiting: Vec<(i64, String)>,
}

impl State {
    pub fn new(run: &AgentRun) -> Self {
        let name = run.metadata.name.clone().unwrap_or_default();
        let mut state = State { name, model: run.spec.model.clone(), phase: "Pending".into(), ..State::default() };
        if let Some(status) = &run.status {
            state.phase = status.phase.map_or("Pending", |phase| phase.as_str()).to_owned();
            state.started = status.started_at.as_ref().map(|time| time.0.as_second());
            state.max_steps = status.resolved.as_ref().map_or(0, |resolved| resolved.max_steps);
            let limit = status.budget.as_ref().map(|budget| budget.limit).or(status.resolved.as_ref().map(|resolved| resolved.budget));
            state.max_requests = limit.map_or(0, |limit| limit.requests);
            state.max_cost = limit.and_then(|limit| limit.cost_micros);
        }
        state
    }

    /// Take in one event.
    pub fn see(&mut self, event: &Event) {
        let data = &event.data;
        let number = |key: &str| data[key].as_i64();
        match event.kind {
            Some(EventType::Phase | EventType::End) => {
                data["phase"].as_str().unwrap_or_default().clone_into(&mut self.phase);
                if self.phase == "Starting" && self.started.is_none() {
                    self.started = event.time.parse::<jiff::Timestamp>().ok().map(|time| time.as_second());
                }
                if event.kind == Some(EventType::End) {
                    self.waiting.clear();
                }
            }
            Some(EventType::Step) => {
                self.step = number("step").unwrap_or(self.step);
                self.max_steps = number("maxSteps").unwrap_or(self.max_steps);
            }
            Some(EventType::ModelCall) => {
                self.requests = number("requestsSpent").unwrap_or(self.requests);
                self.max_requests = number("requestsLimit").unwrap_or(self.max_requests);
                self.cost = self.cost.saturating_add(number("costMicros").unwrap_or_default().max(0));
            }
            Some(EventType::Approval) => {
                let id = number("id").unwrap_or_default();
                self.waiting.retain(|(waiting, _)| *waiting != id);
                if data["state"] == "pending" {
                    let text = |key: &str| data[key].as_str().unwrap_or_default();
                    self.waiting.push((id, format!("{} {}", text("kind"), text("summary"))));
                }
            }
            _ => {}
        }
    }

    /// The lines beneath, each at most `width` columns wide.
    pub fn lines(&self, now: i64, width: usize, output: &Output) -> Vec<String> {
        let mut parts = vec![self.phase.clone()];
        if self.max_steps > 0 {
            parts.push(format!("step {}/{}", self.step, self.max_steps));
        }
        if self.max_requests > 0 {
            parts.push(format!("requests {}/{}", self.requests, self.max_requests));
        }
        match self.max_cost {
            Some(most) => parts.push(format!("cost {}/{}", quantity::micros_text(self.cost), quantity::micros_text(most))),
            None if self.cost > 0 => parts.push(format!("cost {}", quantity::micros_text(self.cost))),
            None => {}
        }
        parts.push(self.model.clone());
        if let Some(started) = self.started {
            parts.push(age(now - started));
        }
        let text = fit(&visible::line(&format!("{}  {}", self.name, parts.join("  "))), width);
        let color = match self.phase.as_str() {
            "Succeeded" => Color::Green,
            "Failed" | "Cancelled" => Color::Red,
            _ => Color::Bold,
        };
        let mut lines = vec![output.paint(color, &text)];
        for (id, what) in self.waiting.iter().take(MOST_WAITING) {
            let command = hint::complete(&format!("kubectl agentrun approve {} {id}", self.name));
            let text = fit(&visible::line(&format!("! {id} waits: {what}")), width);
            lines.push(output.paint(Color::Yellow, &text));
            lines.push(fit(&visible::line(&format!("  {command}   or deny {} {id}", self.name)), width));
        }
        if self.waiting.len() > MOST_WAITING {
            let all = hint::complete(&format!("kubectl agentrun approvals {}", self.name));
            lines.push(fit(&format!("  and {} more: {all}", self.waiting.len() - MOST_WAITING), width));
        }
        lines
    }
}

/// Cut to so many columns.
fn fit(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        if used + wide + 1 > width {
            break;
        }
        used += wide;
        out.push(c);
    }
    out.push('…');
    out
}

/// The lines on the screen.
pub struct Screen<'a> {
    output: &'a Output,
    /// Columns of each line that is drawn and will be drawn again.
    drawn: Vec<usize>,
}

impl<'a> Screen<'a> {
    pub fn new(output: &'a Output) -> Self {
        Screen { output, drawn: Vec::new() }
    }

    /// Take the lines beneath away, print these, and draw the lines beneath again.
    pub fn show(&mut self, above: &[String], state: &State) -> Result<(), Failure> {
        let width = columns();
        let now = jiff::Timestamp::now().as_second();
        // One column is left free: a full line would wrap.
        let beneath = state.lines(now, width.saturating_sub(1).max(10), self.output);
        let mut text = self.erase(width);
        for line in above.iter().chain(&beneath) {
            text.push_str(line);
            text.push('\n');
        }
        self.drawn = beneath.iter().map(|line| without_colors(line).width()).collect();
        self.output.raw(text.as_bytes())
    }

    /// Leave what is drawn for good.
    pub fn finish(&mut self) -> Result<(), Failure> {
        let text = self.erase(columns());
        self.drawn.clear();
        self.output.raw(text.as_bytes())
    }

    /// Up to the first drawn line, also where a narrower window has wrapped them, and clear from there.
    fn erase(&self, width: usize) -> String {
        let rows: usize = self.drawn.iter().map(|columns| columns.div_ceil(width.max(1)).max(1)).sum();
        if rows == 0 { String::new() } else { format!("\u{1b}[{rows}A\r\u{1b}[J") }
    }
}

fn without_colors(line: &str) -> String {
    let mut out = String::new();
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => {
                let _ = chars.by_ref().find(|c| *c == 'm');
            }
            c => out.push(c),
        }
    }
    out
}

/// Columns of the terminal.
fn columns() -> usize {
    rustix::termios::tcgetwinsize(std::io::stdout()).ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(80)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::arguments::ColorChoice;

    fn run() -> AgentRun {
        serde_json::from_value(json!({
            "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentRun", "metadata": { "name": "fix-it" },
            "spec": { "instruction": "x", "source": {}, "model": "small" },
        }))
        .expect("a run")
    }

    fn event(kind: &str, data: Value) -> Event {
        let time = "1970-01-01T00:01:40.000Z".to_owned();
        Event { seq: 1, time, kind: serde_json::from_value(json!(kind)).ok(), type_name: kind.into(), data, line: String::new() }
    }

    #[test]
    fn the_lines_say_where_a_run_stands() {
        let output = Output::new(ColorChoice::Never);
        let mut state = State::new(&run());
        let mut shown = Vec::new();
        for (kind, data) in [
            ("phase", json!({"phase": "Starting"})),
            ("phase", json!({"phase": "Running"})),
            ("step", json!({"step": 2, "maxSteps": 12})),
            ("model_call", json!({"requestsSpent": 3, "requestsLimit": 14, "costMicros": 1500})),
            ("approval", json!({"id": 1, "state": "pending", "kind": "run_command", "summary": "rm\u{1b} -rf"})),
            ("approval", json!({"id": 1, "state": "allowed"})),
            ("end", json!({"phase": "Succeeded"})),
        ] {
            state.see(&event(kind, data));
            shown.push(state.lines(141, 200, &output));
        }
        assert_eq!(shown[0], ["fix-it  Starting  small  41s"]);
        assert_eq!(shown[3], ["fix-it  Running  step 2/12  requests 3/14  cost 0.0015  small  41s"]);
        assert_eq!(shown[4][1..], ["! 1 waits: run_command rm\\u{1b} -rf", "  kubectl agentrun approve fix-it 1   or deny fix-it 1"]);
        assert_eq!(shown[5].len(), 1);
        assert!(shown[6][0].starts_with("fix-it  Succeeded"));
        assert!(state.lines(141, 20, &output).iter().all(|line| line.width() <= 20));
    }

    #[test]
    fn a_narrower_window_is_cleared_as_well() {
        let output = Output::new(ColorChoice::Never);
        let mut screen = Screen::new(&output);
        assert_eq!(screen.erase(80), "");
        screen.drawn = vec![79, 10];
        assert_eq!(screen.erase(80), "\u{1b}[2A\r\u{1b}[J");
        assert_eq!(screen.erase(40), "\u{1b}[3A\r\u{1b}[J");
        assert_eq!(without_colors("\u{1b}[31mred\u{1b}[0m x"), "red x");
    }
}
