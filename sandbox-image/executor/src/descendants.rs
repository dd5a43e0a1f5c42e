//! The processes beneath a process, found in /proc, and their end.

use std::{collections::HashMap, fs, str};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

/// Children by parent.
pub struct Processes(HashMap<i32, Vec<Pid>>);

impl Processes {
    /// Read /proc once. What is born or dies meanwhile may be missing: callers look again until nothing is left.
    pub fn read() -> Self {
        let mut children: HashMap<i32, Vec<Pid>> = HashMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else { continue };
            if let Ok(stat) = fs::read(entry.path().join("stat"))
                && let Some(parent) = parent(&stat)
            {
                children.entry(parent).or_default().push(pid);
            }
        }
        Processes(children)
    }

    pub fn children(&self, of: Pid) -> &[Pid] {
        self.0.get(&of.as_raw_nonzero().get()).map_or(&[], Vec::as_slice)
    }

    /// SIGKILL everything beneath `root`, but not itself. It also ends what is stopped.
    pub fn kill_beneath(&self, root: Pid) {
        let mut pending = vec![root];
        while let Some(process) = pending.pop() {
            for child in self.children(process) {
                let _ = rustix::process::kill_process(*child, Signal::KILL);
                pending.push(*child);
            }
        }
    }
}

/// The parent in a line of /proc/<pid>/stat. The name before it is free text, so the last parenthesis counts.
fn parent(stat: &[u8]) -> Option<i32> {
    let after = stat.iter().rposition(|byte| *byte == b')')?;
    str::from_utf8(&stat[after + 1..]).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Take the exit status of every child that has ended. False: there are no children at all.
pub fn reap(mut ended: impl FnMut(Pid, WaitStatus)) -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => ended(pid, status),
            Ok(None) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// What a shell would say: the exit code, or 128 and the signal.
pub fn exit_code(status: WaitStatus) -> u8 {
    let code = status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(255)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_found_behind_any_name() {
        for (line, expected) in [
            ("12 (sh) S 7 12 12 0", Some(7)),
            ("12 (a) S 9 (x) R 5 1 1", Some(5)),
            ("12 (\n) Z 1 ) S 44 0", Some(44)),
            ("12 (sh", None),
            ("12 (sh) S", None),
            ("", None),
        ] {
            assert_eq!(parent(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn own_children_are_listed() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let me = rustix::process::getpid();
        let found = Processes::read().children(me).iter().any(|pid| pid.as_raw_nonzero().get() as u32 == child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found);
    }
}
