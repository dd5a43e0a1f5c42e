//! The checks: each by argv, without a shell, in the workspace, with its log kept.

use agentrun_protocol::{
    event::EventType,
    executor::ExecStart,
    job::JobCheck,
    result::{ClaimedCheck, Outcome},
};
use bytes::Bytes;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    clip::clip,
    deadline::Deadline,
    events::Events,
    executor::{Executor, ExecutorError},
    live_output::LiveOutput,
    tools::MAX_COMMAND_OUTPUT_BYTES,
};

/// What of a log is kept, head and tail.
const MAX_LOG_BYTES: usize = 1024 * 1024;
const SHOWN_BYTES: usize = 16 * 1024;

/// A check that ran, and its log.
pub struct Checked {
    pub claim: ClaimedCheck,
    pub log: Bytes,
}

/// Run all of them in order. Errors: the executor is lost, or the time is up; the checks that ran are in `done`.
pub async fn run(
    executor: &Executor,
    events: &Events,
    deadline: &Deadline,
    checks: &[JobCheck],
    done: &mut Vec<Checked>,
) -> Result<(), (Outcome, String)> {
    for check in checks {
        let left = u64::try_from(deadline.left().as_millis()).unwrap_or(u64::MAX);
        let late = || (Outcome::Deadline, format!("the wall time passed before the check {} was done", check.name));
        if left == 0 {
            return Err(late());
        }
        events.emit(EventType::CheckStarted, json!({"name": check.name, "argv": check.argv}));
        let start =
            ExecStart { argv: check.argv.clone(), timeout_ms: left, max_output_bytes: MAX_COMMAND_OUTPUT_BYTES, ..ExecStart::default() };
        let began = Instant::now();
        let mut output = LiveOutput::new(events, MAX_LOG_BYTES);
        let (exit_code, dropped, timed_out) = match executor.exec(start, &mut output).await {
            Ok(exit) => (Some(i64::from(exit.exit_code).clamp(0, 255)), exit.dropped_bytes, exit.timed_out),
            Err(ExecutorError::Refused(error)) => {
                use crate::executor::Output;
                output.data(agentrun_protocol::executor::exec_output::Stream::Stderr, error.message.as_bytes());
                (None, 0, false)
            }
            Err(lost) => return Err((Outcome::ExecutorLost, lost.to_string())),
        };
        let (log, truncated) = output.finish(dropped);
        let shown = clip(&log, SHOWN_BYTES);
        let mut event = json!({"name": check.name, "durationMs": began.elapsed().as_millis() as u64, "output": shown,
            "truncated": truncated || shown.len() != log.len()});
        if let Some(code) = exit_code {
            event["exitCode"] = json!(code);
        }
        events.emit(EventType::CheckFinished, event);
        let claim = ClaimedCheck { name: check.name.clone(), argv: check.argv.clone(), exit_code, log: None };
        done.push(Checked { claim, log: log.into() });
        if timed_out {
            return Err(late());
        }
    }
    Ok(())
}
