//! A workspace with an executor that serves it, and a way to find processes by a mark in their command line.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use agentrun_protocol::executor::{ExecExit, ExecStart, exec_output::Stream};
use agentrun_runner::{
    connection::{Listening, listen},
    executor::{Executor, ExecutorError, Output},
};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

/// Generous: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Directories of one test.
pub struct Place {
    dir: TempDir,
}

impl Place {
    pub fn new() -> Self {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(place.root()).unwrap();
        std::fs::create_dir(place.home()).unwrap();
        place
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("workspace")
    }

    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.file("executor.sock")
    }
}

/// Start the executor's program, with the directory `home` beside the workspace.
pub fn spawn_executor(socket: &Path, root: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_agentrun-executor"))
        .args(["serve", "--socket"])
        .arg(socket)
        .arg("--root")
        .arg(root)
        .arg("--home")
        .arg(root.with_file_name("home"))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// The same as process 1 of a process namespace, as in its container. `None`: this machine does not let us make one.
pub fn spawn_as_init(socket: &Path, root: &Path) -> Option<Child> {
    let unshare = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child", "--"];
    let allowed = std::process::Command::new(unshare[0]).args(&unshare[1..]).arg("true").status();
    if !allowed.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no process namespace can be made here");
        return None;
    }
    let mut command = Command::new(unshare[0]);
    command.args(&unshare[1..]).arg(env!("CARGO_BIN_EXE_agentrun-executor")).args(["serve", "--socket"]).arg(socket);
    Some(command.arg("--root").arg(root).stdin(Stdio::null()).kill_on_drop(true).spawn().unwrap())
}

/// A connected executor.
pub struct Sandbox {
    pub place: Place,
    pub executor: Executor,
    pub process: Child,
}

impl Sandbox {
    pub async fn start() -> Self {
        Sandbox::with(|socket, root| Some(spawn_executor(socket, root))).await.unwrap()
    }

    pub async fn start_as_init() -> Option<Self> {
        Sandbox::with(spawn_as_init).await
    }

    async fn with(spawn: impl FnOnce(&Path, &Path) -> Option<Child>) -> Option<Self> {
        let place = Place::new();
        let listening: Listening = listen(&place.socket()).unwrap();
        let process = spawn(&place.socket(), &place.root())?;
        let (connection, hello) = listening.accept(PATIENCE).await.unwrap();
        assert_eq!((hello.version, hello.methods.len()), (1, 8));
        Some(Sandbox { place, executor: Executor::new(connection), process })
    }

    pub fn root(&self) -> PathBuf {
        self.place.root()
    }

    /// Run a shell script with a limit of its own.
    pub async fn sh(&self, script: &str, timeout_ms: u64) -> Result<(ExecExit, Captured), ExecutorError> {
        let mut output = Captured::default();
        let exit = self.executor.exec(command(&["sh", "-c", script], timeout_ms), &mut output).await?;
        Ok((exit, output))
    }
}

pub fn command(argv: &[&str], timeout_ms: u64) -> ExecStart {
    let argv = argv.iter().map(|word| (*word).to_owned()).collect();
    ExecStart { argv, timeout_ms, max_output_bytes: 1 << 20, ..ExecStart::default() }
}

/// Output by stream.
#[derive(Default)]
pub struct Captured {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Captured {
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl Output for Captured {
    fn data(&mut self, stream: Stream, data: &[u8]) {
        match stream {
            Stream::Stdout => self.stdout.extend_from_slice(data),
            Stream::Stderr => self.stderr.extend_from_slice(data),
        }
    }
}

/// An argument for `sleep` that no other process has.
pub fn mark() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("98765.{}{:04}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Living processes with the mark in their command line.
pub fn marked(mark: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(mark))
        .collect()
}

/// Wait until a condition holds.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "{what} did not come true");
        sleep(Duration::from_millis(10)).await;
    }
}

/// The process's exit code, awaited.
pub async fn ended(process: &mut Child) -> Option<i32> {
    timeout(PATIENCE, process.wait()).await.expect("the executor must end").unwrap().code()
}
