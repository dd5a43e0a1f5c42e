//! An S3-compatible store over a folder: s3s-fs, which `e2e/s3-server.sh` builds.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::free_port;
use crate::processes::Processes;

pub const ACCESS_KEY: &str = "test-access-key";
pub const SECRET_KEY: &str = "test-secret-key";
const START: Duration = Duration::from_secs(30);

/// A server. It ends when this is dropped, and when the test process ends.
pub struct Objects {
    program: PathBuf,
    folder: PathBuf,
    port: u16,
    processes: Mutex<Processes>,
    buckets: AtomicUsize,
}

impl Objects {
    /// The one server of this test process; tests keep apart by buckets.
    pub fn shared() -> &'static Objects {
        static SHARED: OnceLock<Objects> = OnceLock::new();
        SHARED.get_or_init(|| Objects::start().expect("an object store for the tests"))
    }

    /// A server of one's own, for tests that end it.
    pub fn start() -> Result<Objects> {
        let program = program()?;
        let folder = tempfile::Builder::new().prefix("agentrun-objects-").tempdir()?.keep();
        let processes = Mutex::new(Processes::new(&folder, "objects")?);
        let server = Objects { program, folder, port: free_port()?, processes, buckets: AtomicUsize::new(0) };
        server.resume()?;
        Ok(server)
    }

    /// End it.
    pub fn stop(&self) -> Result<()> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner).end("s3s-fs", "TERM")
    }

    /// Start it again, on the same port with the same data.
    pub fn resume(&self) -> Result<()> {
        let (port, folder) = (self.port.to_string(), self.folder.display().to_string());
        let arguments = ["--host", "127.0.0.1", "--port", &port, "--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY, folder.as_str()];
        let mut processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        processes.spawn("s3s-fs", &self.program, &arguments)?;
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            ensure!(begun.elapsed() < START, "the object store is not ready; its last lines:\n{}", processes.tail("s3s-fs"));
            std::thread::sleep(Duration::from_millis(20)); // readiness can only be polled
        }
        Ok(())
    }

    /// `http://127.0.0.1:<port>`.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Make an empty bucket; its name.
    pub fn bucket(&self) -> Result<String> {
        let name = format!("bucket-{}", self.buckets.fetch_add(1, Ordering::Relaxed));
        std::fs::create_dir(self.folder.join(&name))?;
        Ok(name)
    }

    /// The files of a bucket's objects.
    pub fn files(&self, bucket: &str) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        let mut folders = vec![self.folder.join(bucket)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if !is_internal(&path) {
                    files.push(path);
                }
            }
        }
        files.sort();
        Ok(files)
    }
}

/// What the server keeps for itself.
fn is_internal(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}

fn program() -> Result<PathBuf> {
    let path = crate::programs::cache()?.join("s3-server/bin/s3s-fs");
    ensure!(path.is_file(), "{} is missing: build it once with e2e/s3-server.sh", path.display());
    Ok(path)
}
