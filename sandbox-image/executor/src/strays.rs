//! Processes that reached the executor itself because a command's subreaper was killed. They die, and nothing else does:
//! the subreapers of running commands are known.

use std::{
    collections::HashSet,
    io,
    sync::Mutex,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitOptions};
use tokio::process::Child;

use crate::{descendants::Processes, request::lock};

/// Strays that outlive this end with everything else in the container, where the executor is its process 1.
const PATIENCE: Duration = Duration::from_secs(5);

/// The subreapers of commands in progress.
#[derive(Default)]
pub struct Strays {
    known: Mutex<HashSet<Pid>>,
}

impl Strays {
    /// Start a subreaper, so that no sweep can take it for a stray.
    pub fn spawn(&self, spawn: impl FnOnce() -> io::Result<Child>) -> io::Result<Child> {
        let mut known = lock(&self.known);
        let child = spawn()?;
        known.extend(pid_of(&child));
        Ok(child)
    }

    /// A subreaper has been waited for.
    pub fn forget(&self, pid: Option<Pid>) {
        if let Some(pid) = pid {
            lock(&self.known).remove(&pid);
        }
    }

    /// Kill and take away strays until none is left.
    pub async fn sweep(&self) {
        let start = Instant::now();
        let mut pause = Duration::from_millis(1);
        while self.pass() > 0 {
            // Only where every other process is an agent's: elsewhere this would be the end of a machine.
            if start.elapsed() > PATIENCE && rustix::process::getpid().is_init() {
                let _ = rustix::process::kill_process_group(Pid::INIT, Signal::KILL);
            }
            if start.elapsed() > 2 * PATIENCE {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// One look. The number of strays that were there.
    fn pass(&self) -> usize {
        let known = lock(&self.known);
        let processes = Processes::read();
        let strays: Vec<Pid> = processes.children(rustix::process::getpid()).iter().copied().filter(|pid| !known.contains(pid)).collect();
        for stray in &strays {
            let _ = rustix::process::kill_process(*stray, Signal::KILL);
            processes.kill_beneath(*stray);
            let _ = rustix::process::waitpid(Some(*stray), WaitOptions::NOHANG);
        }
        strays.len()
    }
}

/// The process id, while it has not been waited for.
pub fn pid_of(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}
