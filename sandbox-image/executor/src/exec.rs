//! `exec.Start`: one command by argv, without a shell, with its output streamed. When the answer is sent, no process of the
//! command is left, whatever it did to stay.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use agentrun_protocol::executor::{ExecExit, ExecOutput, ExecStart, exec_output::Stream};
use prost::Message;
use rustix::process::{Pid, Signal};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader},
    net::UnixStream,
    process::{Child, Command},
    time::{interval, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    failure::{Failure, INVALID, IO, NOT_STARTED},
    methods::Executor,
    request::Request,
    strays::pid_of,
};

const MAX_ARGUMENTS: usize = 1024;
const MAX_ARGUMENT_BYTES: usize = 128 * 1024;
const MAX_VARIABLES: usize = 128;
/// Bytes read from a pipe at a time.
const READ_BYTES: usize = 64 * 1024;
/// A subreaper that has been told to end and has not after so long is killed.
const REAPER_PATIENCE: Duration = Duration::from_secs(12);
/// How long a pipe may stay open without data after the last process of the command has ended.
const DRAIN_PATIENCE: Duration = Duration::from_millis(500);
/// So often a stopped subreaper is woken.
const NUDGE: Duration = Duration::from_secs(1);
/// Longest time that a command may have to end by itself.
const MAX_GRACE: Duration = Duration::from_secs(10);
const DEFAULT_OUTPUT_BYTES: u64 = 16 * 1024 * 1024;

/// How the subreaper's report ended.
enum End {
    NotStarted(String),
    Exited(i32),
    /// It was killed, by the command or by us.
    Silent,
}

/// Run the command.
pub async fn start(executor: &Executor, request: Arc<Request>, start: ExecStart) -> Result<ExecExit, Failure> {
    check(&start)?;
    let began = Instant::now();
    let grace = Duration::from_millis(start.grace_ms).min(MAX_GRACE);
    let directory = executor.workspace.directory(&start.cwd)?;
    let (control, theirs) = UnixStream::pair().and_then(|(ours, theirs)| Ok((ours, theirs.into_std()?))).map_err(internal)?;
    theirs.set_nonblocking(false).map_err(internal)?;
    let mut child = executor
        .strays
        .spawn(|| {
            Command::new(&executor.program)
                .arg0("agentrun-executor")
                .args(["command", "--grace", &grace.as_millis().to_string(), "--"])
                .args(&start.argv)
                .env_clear()
                .envs(&executor.environment)
                .envs(&start.env)
                // Resolved in the child before it executes anything, where the descriptor is still open.
                .current_dir(PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())))
                .stdin(OwnedFd::from(theirs))
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
        })
        .map_err(|error| Failure::new(NOT_STARTED, format!("argv: {error}")))?;
    drop(directory);
    let pid = pid_of(&child);

    let limit = if start.max_output_bytes == 0 { DEFAULT_OUTPUT_BYTES } else { start.max_output_bytes };
    let output = Arc::new(Output { request: request.clone(), left: AtomicU64::new(limit), dropped: AtomicU64::new(0) });
    let ended = CancellationToken::new();
    let stdout = child.stdout.take().map(|pipe| tokio::spawn(output.clone().pump(Stream::Stdout, pipe, ended.clone())));
    let stderr = child.stderr.take().map(|pipe| tokio::spawn(output.clone().pump(Stream::Stderr, pipe, ended.clone())));

    let (end, timed_out) = follow(control, pid, &request.cancel, start.timeout_ms, grace).await;
    let status = wait(&mut child).await;
    executor.strays.forget(pid);
    executor.strays.sweep().await;
    ended.cancel();
    for pump in [stdout, stderr].into_iter().flatten() {
        let _ = pump.await;
    }

    request.check()?;
    let exit_code = match end {
        End::NotStarted(why) => {
            return Err(Failure::new(NOT_STARTED, format!("argv: {} could not be started: {why}", start.argv[0])));
        }
        End::Exited(code) => code,
        End::Silent => status.unwrap_or(128 + 9),
    };
    Ok(ExecExit {
        exit_code,
        timed_out,
        dropped_bytes: output.dropped.load(Ordering::Relaxed),
        duration_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
    })
}

/// Read the subreaper's report; close the connection, which ends the command, on cancel and when its time is up.
async fn follow(control: UnixStream, subreaper: Option<Pid>, cancel: &CancellationToken, timeout_ms: u64, grace: Duration) -> (End, bool) {
    let (reader, writer) = control.into_split();
    let mut writer = Some(writer);
    let mut lines = BufReader::new(reader).lines();
    let far = Duration::from_secs(366 * 24 * 3600);
    let deadline = tokio::time::Instant::now() + if timeout_ms == 0 { far } else { Duration::from_millis(timeout_ms).min(far) };
    let mut give_up = tokio::time::Instant::now() + far;
    let mut timed_out = false;
    let mut nudges = interval(NUDGE);
    loop {
        tokio::select! {
            // The command runs as the same user and may have stopped it.
            _ = nudges.tick() => {
                if let Some(subreaper) = subreaper {
                    let _ = rustix::process::kill_process(subreaper, Signal::CONT);
                }
            }
            line = lines.next_line() => match line.ok().flatten() {
                Some(line) => {
                    if let Some(why) = line.strip_prefix("failed ") {
                        return (End::NotStarted(why.to_owned()), false);
                    }
                    if let Some(code) = line.strip_prefix("exited ").and_then(|code| code.parse().ok()) {
                        return (End::Exited(code), timed_out);
                    }
                }
                None => return (End::Silent, timed_out),
            },
            () = sleep_until(deadline), if writer.is_some() => {
                timed_out = true;
                writer = None;
                give_up = tokio::time::Instant::now() + grace + REAPER_PATIENCE;
            }
            () = cancel.cancelled(), if writer.is_some() => {
                writer = None;
                give_up = tokio::time::Instant::now() + grace + REAPER_PATIENCE;
            }
            () = sleep_until(give_up), if writer.is_none() => return (End::Silent, timed_out),
        }
    }
}

/// Wait for the subreaper, which is about to end or is killed.
async fn wait(child: &mut Child) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt;
    let status = match timeout(REAPER_PATIENCE, child.wait()).await {
        Ok(status) => status,
        Err(_) => {
            let _ = child.start_kill();
            child.wait().await
        }
    };
    status.ok().and_then(|status| status.code().or_else(|| status.signal().map(|signal| 128 + signal)))
}

/// Where both streams go.
struct Output {
    request: Arc<Request>,
    /// Bytes that may still be sent.
    left: AtomicU64,
    dropped: AtomicU64,
}

impl Output {
    /// Send what the pipe gives until it ends. Once the command's processes are gone, a pipe that somebody else still
    /// holds open is waited for a moment only.
    async fn pump(self: Arc<Self>, stream: Stream, mut pipe: impl AsyncRead + Unpin, ended: CancellationToken) {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let read = tokio::select! {
                biased;
                read = pipe.read(&mut buffer) => read,
                () = ended.cancelled() => match timeout(DRAIN_PATIENCE, pipe.read(&mut buffer)).await {
                    Ok(read) => read,
                    Err(_) => return,
                },
            };
            let Ok(count @ 1..) = read else { return };
            let taken = self.take(count);
            self.dropped.fetch_add((count - taken) as u64, Ordering::Relaxed);
            if taken > 0 {
                let data = buffer[..taken].to_vec();
                let payload = ExecOutput { stream: stream.into(), data }.encode_to_vec();
                // Cancelled: go on reading, so that nothing blocks on a full pipe while it is being killed.
                let _ = self.request.emit(payload).await;
            }
        }
    }

    fn take(&self, count: usize) -> usize {
        let count = count as u64;
        let before =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(count))).unwrap_or_default();
        usize::try_from(before.min(count)).unwrap_or_default()
    }
}

fn check(start: &ExecStart) -> Result<(), Failure> {
    let invalid = |message: String| Err(Failure::new(INVALID, message));
    if start.argv.first().is_none_or(String::is_empty) {
        return invalid("argv: names no program; the first element must not be empty".into());
    }
    let bytes: usize = start.argv.iter().map(String::len).sum();
    if start.argv.len() > MAX_ARGUMENTS || bytes > MAX_ARGUMENT_BYTES {
        return invalid(format!(
            "argv: has {} elements of {bytes} bytes; at most {MAX_ARGUMENTS} of {MAX_ARGUMENT_BYTES} bytes in all are allowed",
            start.argv.len()
        ));
    }
    if start.argv.iter().any(|argument| argument.contains('\0')) {
        return invalid("argv: contains a NUL character".into());
    }
    if start.env.len() > MAX_VARIABLES {
        return invalid(format!("env: has {} variables; at most {MAX_VARIABLES} are allowed", start.env.len()));
    }
    for (name, value) in &start.env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') || value.len() > MAX_ARGUMENT_BYTES {
            return invalid(format!("env: {name:?} is not a variable: no '=' in names, no NUL, at most {MAX_ARGUMENT_BYTES} bytes"));
        }
    }
    Ok(())
}

fn internal(error: std::io::Error) -> Failure {
    Failure::new(IO, format!("the command's channel could not be made: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_commands_are_refused_by_field() {
        let command = |argv: &[&str]| ExecStart { argv: argv.iter().map(|s| s.to_string()).collect(), ..ExecStart::default() };
        let long = "x".repeat(MAX_ARGUMENT_BYTES);
        for argv in [&[][..], &[""], &["a\0b"], &["echo", "a\0"], &["echo", &long], &["a"; MAX_ARGUMENTS + 1]] {
            let failure = check(&command(argv)).unwrap_err();
            assert!(failure.code == INVALID && failure.message.starts_with("argv: "), "{}", failure.message);
        }
        for (name, value) in [("", "x"), ("A=B", "x"), ("A", "\0"), ("A\0", "x")] {
            let mut start = command(&["true"]);
            start.env.insert(name.into(), value.into());
            assert!(check(&start).unwrap_err().message.starts_with("env: "));
        }
        assert!(check(&command(&["echo", ""])).is_ok());
    }
}
