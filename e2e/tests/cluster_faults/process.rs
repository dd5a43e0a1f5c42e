//! A process that is started again whenever it ends, as the kubelet would.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Ends with this, and with the thread that started it.
pub struct Restarted {
    id: Arc<AtomicU32>,
    task: tokio::task::JoinHandle<()>,
}

impl Restarted {
    pub fn start(command: Command) -> Restarted {
        let id = Arc::new(AtomicU32::new(0));
        let shown = id.clone();
        let task = tokio::spawn(async move {
            let mut command = tokio::process::Command::from(command);
            command.kill_on_drop(true);
            loop {
                let mut child = command.spawn().expect("a process that was started before");
                shown.store(child.id().unwrap_or_default(), Ordering::SeqCst);
                let _ = child.wait().await;
            }
        });
        Restarted { id, task }
    }

    /// Kills the process that runs when this is called.
    pub fn killer(&self) -> impl FnOnce() + Send + 'static {
        let id = self.id.clone();
        move || {
            let id = id.load(Ordering::SeqCst);
            let killed = Command::new("kill").args(["-KILL", &id.to_string()]).status();
            assert!(killed.is_ok_and(|status| status.success()), "process {id} cannot be killed");
        }
    }
}

impl Drop for Restarted {
    fn drop(&mut self) {
        self.task.abort();
    }
}
