//! The local node's enforcement of NetworkPolicy, switched off and on for every Pod of the node: as on a cluster whose network
//! plugin knows no NetworkPolicy, or is late.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Node;

/// The first rule of the chain that `e2e/cluster/node.sh` makes; it lets every packet pass.
const PASS: &[&str] = &["NETPOL", "-j", "RETURN"];

impl Node {
    /// Stop enforcing. A story does so alone on the node, and closes it again whatever comes out.
    pub async fn open_fence(&self) -> Result<()> {
        self.iptables("-I").await
    }

    /// Enforce again.
    pub async fn close_fence(&self) -> Result<()> {
        self.iptables("-D").await
    }

    async fn iptables(&self, action: &str) -> Result<()> {
        let mut command = tokio::process::Command::new("nsenter");
        command.args(["--net", "--target", &self.first_process()?.to_string(), "iptables", "--wait", "-t", "mangle", action]).args(PASS);
        let output = command.kill_on_drop(true).output().await.context("running nsenter")?;
        ensure!(output.status.success(), "iptables {action}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Process 1 of the node, by its command line.
    fn first_process(&self) -> Result<u32> {
        let state = self.kubeconfig.parent().and_then(Path::parent).context("the kubeconfig is not in a node's state")?;
        let script = format!("bash\0{}\0", state.join("node.sh").display());
        let pids = std::fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let ours = pids.filter(|pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words == script.as_bytes()));
        ours.min().with_context(|| format!("no node runs from {}: this story needs the local one", state.display()))
    }
}
