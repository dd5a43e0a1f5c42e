//! Performs one tool call through the executor, and words the outcome for the model.

use agentrun_protocol::executor::{EntryKind, ExecStart};

use crate::{
    clip::clip,
    deadline::Deadline,
    events::Events,
    executor::{Executor, ExecutorError},
    live_output::LiveOutput,
    tool_arguments::{Action, ReadFile, RunCommand, relative},
};

/// What one call gives the model at most.
pub const MAX_OUTPUT_BYTES: usize = 24 * 1024;
/// What is read of a file. Longer ones are read in parts of lines from it.
const MAX_READ_BYTES: u64 = 2 * 1024 * 1024;
const MAX_WRITE_BYTES: usize = 4 * 1024 * 1024;
const MAX_ENTRIES: u32 = 500;
const MAX_MATCHES: u32 = 100;
/// A command that writes more goes on, and the rest is dropped where it comes from.
pub const MAX_COMMAND_OUTPUT_BYTES: u64 = 16 * 1024 * 1024;

/// The outcome of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub ok: bool,
    pub text: String,
    pub truncated: bool,
}

impl Outcome {
    pub fn failed(text: impl Into<String>) -> Self {
        Outcome { ok: false, text: text.into(), truncated: false }
    }

    fn good(text: String) -> Self {
        let clipped = clip(&text, MAX_OUTPUT_BYTES);
        Outcome { ok: true, truncated: clipped.len() != text.len(), text: clipped.into_owned() }
    }
}

/// Errors only when the executor is lost; everything else is told to the model.
pub async fn perform(executor: &Executor, events: &Events, deadline: &Deadline, action: Action) -> Result<Outcome, ExecutorError> {
    let outcome = match action {
        Action::Read(file) => read(executor, &file).await,
        Action::Write(file) if file.content.len() > MAX_WRITE_BYTES => {
            Ok(Outcome::failed(format!("content: has {} bytes; at most {MAX_WRITE_BYTES} are allowed", file.content.len())))
        }
        Action::Write(file) => executor
            .write(relative(&file.path), file.content.as_bytes(), 0)
            .await
            .map(|()| Outcome::good(format!("wrote {} bytes to {}", file.content.len(), file.path))),
        Action::Edit(edit) => executor
            .edit(relative(&edit.path), &edit.old_text, &edit.new_text)
            .await
            .map(|()| Outcome::good(format!("replaced the text in {}", edit.path))),
        Action::List(list) => directory(executor, relative(list.path.as_deref().unwrap_or_default())).await,
        Action::Search(search) => find(executor, relative(search.path.as_deref().unwrap_or_default()), &search.text).await,
        Action::Run(run) => command(executor, events, deadline, run).await,
    };
    match outcome {
        Err(error @ ExecutorError::Refused(_)) => Ok(Outcome::failed(error.to_string())),
        other => other,
    }
}

async fn read(executor: &Executor, file: &ReadFile) -> Result<Outcome, ExecutorError> {
    let (content, done) = executor.read(relative(&file.path), MAX_READ_BYTES).await?;
    if content.contains(&0) {
        return Ok(Outcome::failed(format!("{}: is not a text file ({} bytes)", file.path, done.size)));
    }
    let text = String::from_utf8_lossy(&content);
    let (first, count) = (file.first_line.unwrap_or(1).max(1), file.lines.unwrap_or(usize::MAX));
    let mut shown = match (file.first_line, file.lines) {
        (None, None) => text.into_owned(),
        _ => text.split_inclusive('\n').skip(first - 1).take(count).collect(),
    };
    if done.truncated {
        shown.push_str(&format!("\n[… the file has {} bytes; only the first {MAX_READ_BYTES} can be read …]", done.size));
    } else if shown.is_empty() {
        let lines = String::from_utf8_lossy(&content).lines().count();
        return Ok(Outcome::good(format!("[nothing; the file has {lines} lines]")));
    }
    Ok(Outcome::good(shown))
}

async fn directory(executor: &Executor, path: &str) -> Result<Outcome, ExecutorError> {
    let done = executor.list(path, MAX_ENTRIES).await?;
    let mut text = String::new();
    for entry in &done.entries {
        // A name with a line break must not look like two entries.
        let name = crate::clip::printable(&entry.name);
        match entry.kind() {
            EntryKind::File => text.push_str(&format!("{name} ({} bytes)\n", entry.size)),
            EntryKind::Directory => text.push_str(&format!("{name}/\n")),
            EntryKind::Symlink => text.push_str(&format!("{name} (symbolic link)\n")),
            EntryKind::Other => text.push_str(&format!("{name} (special file)\n")),
        }
    }
    if done.truncated {
        text.push_str("[… more entries …]\n");
    }
    Ok(Outcome::good(if text.is_empty() { "[empty]".into() } else { text }))
}

async fn find(executor: &Executor, path: &str, text: &str) -> Result<Outcome, ExecutorError> {
    let done = executor.search(path, text, MAX_MATCHES).await?;
    let mut lines: String = done.matches.iter().map(|found| format!("{}:{}: {}\n", found.path, found.line, found.text)).collect();
    if done.truncated {
        lines.push_str("[… more matches; search for something longer, or in a smaller directory …]\n");
    }
    Ok(Outcome::good(if lines.is_empty() { "[no match]".into() } else { lines }))
}

async fn command(executor: &Executor, events: &Events, deadline: &Deadline, run: RunCommand) -> Result<Outcome, ExecutorError> {
    let left = u64::try_from(deadline.left().as_millis()).unwrap_or(u64::MAX).max(1);
    let timeout_ms = (run.timeout_seconds() * 1000).min(left);
    let start = ExecStart {
        cwd: relative(run.cwd.as_deref().unwrap_or_default()).to_owned(),
        argv: run.argv,
        timeout_ms,
        max_output_bytes: MAX_COMMAND_OUTPUT_BYTES,
        ..ExecStart::default()
    };
    let mut output = LiveOutput::new(events, MAX_OUTPUT_BYTES);
    let exit = executor.exec(start, &mut output).await?;
    let (text, truncated) = output.finish(exit.dropped_bytes);
    let end = match exit.timed_out {
        true => format!("killed after {:.1} s, its time limit", timeout_ms as f64 / 1000.0),
        false => format!("exit code {}", exit.exit_code),
    };
    Ok(Outcome { ok: exit.exit_code == 0 && !exit.timed_out, text: format!("{end}\n{text}"), truncated })
}
