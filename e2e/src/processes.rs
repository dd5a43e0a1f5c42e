//! Child processes that cannot outlive the test: each runs beneath a shell that waits on a pipe from us. When the pipe
//! closes, because we drop it or because we died, the shell ends the process.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Start the arguments, print their process id, wait for the pipe to close, end them; the last one to go clears the folder.
const SUPERVISE: &str = r#""$@" >>"$LOG" 2>&1 & child=$!; echo $child; read -r _; kill -"$SIGNAL" $child; wait $child; rm -rf "$FOLDER""#;

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
    /// Logs go beneath `target/test-logs/<kind>/`; those of processes long gone are removed.
    pub fn new(folder: &Path, kind: &str) -> Result<Self> {
        let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-logs").join(kind);
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
        self.spawn_ended_by("KILL", name, program, arguments)
    }

    /// The same of a program that should be ended by another signal than KILL.
    pub fn spawn_ended_by(&mut self, signal: &str, name: &'static str, program: &Path, arguments: &[&str]) -> Result<()> {
        let log = self.log(name);
        File::options().create(true).append(true).open(&log)?;
        let mut shell = Command::new("sh")
            .args(["-c", SUPERVISE, name])
            .arg(program)
            .args(arguments)
            .env("LOG", &log)
            .env("FOLDER", &self.folder)
            .env("SIGNAL", signal)
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
        self.running.iter().find(|process| !alive(process.pid)).map(|process| process.name)
    }

    /// Send a process a signal, and wait until it has ended. It may be spawned again then.
    pub fn end(&mut self, name: &str, signal: &str) -> Result<()> {
        let place = self.running.iter().rposition(|process| process.name == name && alive(process.pid));
        let pid = self.running[place.with_context(|| format!("{name} does not run"))?].pid;
        let sent = Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status()?;
        ensure!(sent.success(), "kill could not signal {name}");
        let begun = Instant::now();
        while alive(pid) {
            ensure!(begun.elapsed() < Duration::from_secs(30), "{name} has not ended 30 s after {signal}");
            std::thread::sleep(Duration::from_millis(10)); // not our child, so it can only be polled
        }
        Ok(())
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

fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in self.running.iter_mut().rev() {
            drop(process.pipe.take());
            let _ = process.shell.wait();
        }
    }
}
