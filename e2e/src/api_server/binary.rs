//! Where the programs of the local cluster are.

use std::path::PathBuf;

use anyhow::Result;

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
    let folder = match std::env::var_os("AGENTRUN_BIN") {
        Some(folder) => PathBuf::from(folder),
        None => crate::programs::cache()?.join("cluster/bin"),
    };
    let path = folder.join(name);
    if path.is_file() { Ok(path) } else { Err(Missing(path).into()) }
}
