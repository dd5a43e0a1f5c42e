//! PostgreSQL, run by an unprivileged user, since it refuses root.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rcgen::{CertificateParams, KeyPair};

use super::free_port;
use crate::processes::Processes;

const USER: &str = "agentrun";
/// Of the user. It needs to be percent-encoded in a URL, and must never show.
const PASSWORD: &str = "pass/word";
const PASSWORD_IN_URL: &str = "pass%2Fword";
const START: Duration = Duration::from_secs(60);

/// A server. It ends when this is dropped, and when the test process ends.
pub struct Postgres {
    programs: PathBuf,
    folder: PathBuf,
    port: u16,
    processes: Mutex<Processes>,
    databases: AtomicUsize,
    /// PEM of the authority of its certificate, which is for `localhost`.
    pub authority: String,
}

impl Postgres {
    /// The one server of this test process; tests keep apart by databases.
    pub fn shared() -> &'static Postgres {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| Postgres::start().expect("a PostgreSQL server for the tests"))
    }

    /// A server of one's own, for tests that end it.
    pub fn start() -> Result<Postgres> {
        let programs = programs()?;
        let folder = tempfile::Builder::new().prefix("agentrun-postgres-").tempdir()?.keep();
        let key = KeyPair::generate()?;
        let authority = CertificateParams::new(vec!["localhost".to_owned()])?.self_signed(&key)?.pem();
        std::fs::write(folder.join("server.crt"), &authority)?;
        std::fs::write(folder.join("server.key"), key.serialize_pem())?;
        std::fs::set_permissions(folder.join("server.key"), Permissions::from_mode(0o600))?;
        std::fs::write(folder.join("password"), PASSWORD)?;
        if is_root() {
            run(Command::new("chown").args(["-R", "postgres:"]).arg(&folder))?;
        }
        let data = folder.join("data");
        let password = format!("--pwfile={}", folder.join("password").display());
        run(unprivileged(&programs.join("initdb"))
            .args(["--no-sync", "--encoding=UTF8", "--locale=C", "--auth-local=trust", "--auth-host=scram-sha-256"])
            .args(["--username", USER, &password])
            .arg(&data))?;
        let processes = Mutex::new(Processes::new(&folder, "postgres")?);
        let server = Postgres { programs, folder, port: free_port()?, processes, databases: AtomicUsize::new(0), authority };
        server.resume()?;
        Ok(server)
    }

    /// End the server as an administrator would, at once: open transactions are broken off.
    pub fn stop(&self) -> Result<()> {
        self.processes().end("postgres", "INT")
    }

    /// End it as a crash would.
    pub fn crash(&self) -> Result<()> {
        self.processes().end("postgres", "QUIT")
    }

    /// Start it again, on the same port with the same data.
    pub fn resume(&self) -> Result<()> {
        let postgres = unprivileged(&self.programs.join("postgres"));
        let words: Vec<String> = postgres.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let file = |name: &str| self.folder.join(name).display().to_string();
        let settings = [
            format!("port={}", self.port),
            "listen_addresses=127.0.0.1".into(),
            format!("unix_socket_directories={}", self.folder.display()),
            "max_connections=300".into(),
            // What is thrown away need not be on the disk: a process that ends loses nothing all the same.
            "fsync=off".into(),
            "ssl=on".into(),
            format!("ssl_cert_file={}", file("server.crt")),
            format!("ssl_key_file={}", file("server.key")),
        ];
        let mut arguments: Vec<&str> = words.iter().map(String::as_str).collect();
        let data = file("data");
        arguments.extend(["-D", &data]);
        for setting in &settings {
            arguments.extend(["-c", setting]);
        }
        self.processes().spawn_ended_by("QUIT", "postgres", Path::new(postgres.get_program()), &arguments)?;
        self.ready()
    }

    fn ready(&self) -> Result<()> {
        let begun = Instant::now();
        while self.psql("postgres", "SELECT 1").is_err() {
            ensure!(begun.elapsed() < START, "PostgreSQL is not ready; its last lines:\n{}", self.processes().tail("postgres"));
            std::thread::sleep(Duration::from_millis(20)); // readiness can only be polled
        }
        Ok(())
    }

    /// Make an empty database; its name.
    pub fn database(&self) -> Result<String> {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.psql("postgres", &format!("CREATE DATABASE {name}"))?;
        Ok(name)
    }

    /// The URL of a database, with user and password.
    pub fn url(&self, database: &str) -> String {
        format!("postgresql://{USER}:{PASSWORD_IN_URL}@localhost:{}/{database}", self.port)
    }

    /// Run SQL behind everybody's back; what it answers.
    pub fn psql(&self, database: &str, sql: &str) -> Result<String> {
        let port = self.port.to_string();
        let output = Command::new(self.programs.join("psql"))
            .arg("--host")
            .arg(&self.folder)
            .args([
                "--port",
                &port,
                "--username",
                USER,
                "--dbname",
                database,
                "--no-psqlrc",
                "--tuples-only",
                "--no-align",
                "--command",
                sql,
            ])
            .output()?;
        ensure!(output.status.success(), "psql: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn processes(&self) -> std::sync::MutexGuard<'_, Processes> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The folder of the newest version that is installed.
fn programs() -> Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let installed = versions.filter(|version| version.path().join("bin/postgres").is_file());
    let newest = installed.max_by_key(|version| version.file_name().to_string_lossy().parse::<u32>().unwrap_or_default());
    Ok(newest.context("PostgreSQL is not installed; `make packages` installs it")?.path().join("bin"))
}

/// As the user `postgres` where we are root.
fn unprivileged(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program).current_dir("/");
    command
}

fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| status.lines().any(|line| line.starts_with("Uid:\t0\t")))
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("running {:?}", command.get_program()))?;
    ensure!(output.status.success(), "{:?}: {}", command.get_program(), String::from_utf8_lossy(&output.stderr));
    Ok(())
}
