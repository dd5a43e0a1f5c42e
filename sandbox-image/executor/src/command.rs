//! `command`: a process between the executor and one command. It adopts whatever the command leaves behind, and ends only
//! when no descendant is left, also when a descendant called setsid, forked twice or stopped itself.
//!
//! Its standard input is a socket to the executor. It says `started` or `failed <why>`, then `exited <code>`; when the other
//! end closes, the command is killed. Stdout and stderr are the command's own.

use std::{
    ffi::OsString,
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{DumpableBehavior, Pid, PidfdFlags, Signal, WaitStatus},
};

use crate::descendants::{Processes, exit_code, reap};

/// So often are adopted processes that have ended taken away while the command runs.
const TICK: Duration = Duration::from_millis(250);
/// Descendants that outlive this are left to the executor.
const SWEEP_LIMIT: Duration = Duration::from_secs(10);
/// Processes and threads that the commands of a Pod may have together.
const PROCESSES: u64 = 1024;

/// Run `argv` in the current directory and environment.
pub fn run(argv: &[OsString], grace: Duration) -> ExitCode {
    match supervise(argv, grace) {
        Ok(code) => ExitCode::from(code),
        Err(_) => ExitCode::from(255),
    }
}

fn supervise(argv: &[OsString], grace: Duration) -> io::Result<u8> {
    let me = rustix::process::getpid();
    // Adopt orphans, be out of the reach of the command's ptrace, and of signals to its group.
    rustix::process::set_child_subreaper(Some(me))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let _ = rustix::process::setsid();
    bound_processes();
    let mut control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);

    let (program, arguments) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let child = match Command::new(program).args(arguments).stdin(Stdio::null()).process_group(0).spawn() {
        Ok(child) => child,
        Err(error) => {
            writeln!(control, "failed {}", error.to_string().replace('\n', " "))?;
            return Ok(126);
        }
    };
    let pid = Pid::from_child(&child);
    writeln!(control, "started")?;

    let mut status = await_end(Some(&control), pid, None);
    if status.is_none() && !grace.is_zero() {
        // To the group, which the command leads: most programs tell their children themselves.
        let _ = rustix::process::kill_process_group(pid, Signal::TERM);
        status = await_end(None, pid, Some(Instant::now() + grace));
    }
    sweep(me, |ended, how| {
        if ended == pid {
            status = Some(how);
        }
    });
    let code = status.map_or(255, exit_code);
    writeln!(control, "exited {code}")?;
    Ok(code)
}

/// A fork bomb stays small. Only in a user namespace: elsewhere the kernel counts this user's processes in all Pods of the node
/// together. The executor keeps its own limit, so it can always start the process that sweeps.
fn bound_processes() {
    let own_users = std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| shifted(&map));
    if own_users {
        let limit = rustix::process::Rlimit { current: Some(PROCESSES), maximum: Some(PROCESSES) };
        let _ = rustix::process::setrlimit(rustix::process::Resource::Nproc, limit);
    }
}

/// Whether user ids are mapped to others, by the text of a `uid_map`.
fn shifted(map: &str) -> bool {
    let mut ranges = map.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    map.lines().count() > 0 && ranges.all(|range| range.len() == 3 && range[0] != range[1])
}

/// Wait until the command has ended, or the executor wants it to, or it is time. Nothing is returned in the latter cases.
fn await_end(control: Option<&UnixStream>, pid: Pid, until: Option<Instant>) -> Option<WaitStatus> {
    // Without pidfds (older kernels, some sandboxes) the tick alone notices the end, a little later.
    let pidfd: Option<OwnedFd> = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
    let tick = if pidfd.is_some() { TICK } else { TICK / 25 };
    let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(tick.subsec_nanos()) };
    loop {
        let mut status = None;
        reap(|ended, how| {
            if ended == pid {
                status = Some(how);
            }
        });
        if status.is_some() {
            return status;
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            return None;
        }
        let mut watched: Vec<PollFd<'_>> = pidfd.as_ref().map(|pidfd| PollFd::new(pidfd, PollFlags::IN)).into_iter().collect();
        watched.extend(control.map(|control| PollFd::new(control, PollFlags::IN)));
        let _ = poll(&mut watched, Some(&tick));
        // The executor never writes, so anything to read is its end.
        if control.is_some() && watched.last().is_some_and(|control| !control.revents().is_empty()) {
            return None;
        }
    }
}

/// Kill and take away descendants until none is left.
fn sweep(me: Pid, mut ended: impl FnMut(Pid, WaitStatus)) {
    let until = Instant::now() + SWEEP_LIMIT;
    while reap(&mut ended) && Instant::now() < until {
        Processes::read().kill_beneath(me);
        std::thread::sleep(Duration::from_micros(500));
    }
}

#[cfg(test)]
mod tests {
    use super::shifted;

    #[test]
    fn a_shifted_map_is_told_from_the_nodes_own() {
        for (map, expected) in [
            ("         0     524288      65536\n", true),
            ("         0          0 4294967295\n", false),
            ("0 524288 10\n10 10 5\n", false),
            ("", false),
            ("garbage\n", false),
        ] {
            assert_eq!(shifted(map), expected, "{map:?}");
        }
    }
}
