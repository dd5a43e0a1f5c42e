//! Child processes that cannot outlive the test: each runs beneath a shell that waits on a pipe from us. When the pipe
//! closes, because we drop it or because we died, the shell kills the process.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result};

/// Start the arguments, print their process id, wait for the pipe to close, kill them; the last one to go clears the folder.
const SUPERVISE: &str = r#""$@" >>"$LOG" 2>&1 & child=$!; echo $child; read -r _; kill -9 $child; wait $child; rm -rf "$FOLDER""#;

/// The programs of the cluster have not been built.
#[derive(Debug)]
pub struct Missing(PathBuf);

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} is missing: build it once with `make cluster-programs`, or set AGENTRUN_BIN to a folder that has it",
            self.0.display()
        )
    }
}

impl std::error::Error for Missing {}

/// A program of the local cluster.
pub fn binary(name: &str) -> Result<PathBuf> {
    let folder = std::env::var_os("AGENTRUN_BIN").map(PathBuf::from).or_else(|| {
        let cache = std::env::var_os("AGENTRUN_CACHE").map(PathBuf::from);
        let cache = cache.or_else(|| std::env::home_dir().map(|home| home.join(".cache/agentrun")))?;
        Some(cache.join("cluster/bin"))
    });
    let path = folder.context("neither AGENTRUN_BIN nor a home directory")?.join(name);
    if path.is_file() { Ok(path) } else { Err(Missing(path).into()) }
}

struct Supervised {
    name: &'static str,
    shell: Child,
    pid: u32,
    pipe: Option<ChildStdin>,
}

/// The processes of one server and their logs.
pub struct Processes {
    running: Vec<Supervised>,
    folder: PathBuf,
    logs: PathBuf,
}

impl Processes {
    /// Logs go beneath `target/test-logs/api-server/`; those of processes long gone are removed.
    pub fn new(folder: &Path) -> Result<Self> {
        let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-logs/api-server");
        std::fs::create_dir_all(&all)?;
        for old in std::fs::read_dir(&all)?.flatten() {
            let name = old.file_name();
            let owner = name.to_string_lossy().split('-').next().map(str::to_owned).unwrap_or_default();
            if !Path::new("/proc").join(owner).exists() {
                let _ = std::fs::remove_dir_all(old.path());
            }
        }
        let unique = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let logs = all.join(format!("{}-{unique}", std::process::id()));
        std::fs::create_dir_all(&logs)?;
        Ok(Processes { running: Vec::new(), folder: folder.to_owned(), logs })
    }

    /// Start a program; its output goes to `<logs>/<name>.log`.
    pub fn spawn(&mut self, name: &'static str, program: &Path, arguments: &[&str]) -> Result<()> {
        let log = self.log(name);
        File::create(&log)?;
        let mut shell = Command::new("sh")
            .args(["-c", SUPERVISE, name])
            .arg(program)
            .args(arguments)
            .env("LOG", &log)
            .env("FOLDER", &self.folder)
            .process_group(0) // an interrupt at the terminal is for us; the shell learns of it by the pipe
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let pipe = shell.stdin.take();
        let mut pid = String::new();
        BufReader::new(shell.stdout.take().context("the shell has an output")?).read_line(&mut pid)?;
        let pid = pid.trim().parse().context("the shell tells the process id")?;
        self.running.push(Supervised { name, shell, pid, pipe });
        Ok(())
    }

    /// The name of a process that has ended by itself.
    pub fn dead(&self) -> Option<&'static str> {
        let alive = |pid: u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
        };
        self.running.iter().find(|process| !alive(process.pid)).map(|process| process.name)
    }

    /// The last lines that a process wrote.
    pub fn tail(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.log(name)).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// The folder of the logs.
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in self.running.iter_mut().rev() {
            drop(process.pipe.take());
            let _ = process.shell.wait();
        }
    }
}
