//! The benchmarks: `make bench`. Prints one table and writes `bench/results.json`. Numbers mean something in a release build only.

mod follow_latency;
mod proxy;
mod references;
mod report;
mod speed;
mod start_cost;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};

/// Run the benchmarks.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Subcommand)]
enum Part {
    /// Only the speed of the model proxy; needs etcd and kube-apiserver, no node.
    Call,
    /// Only how soon a follower sees an event; needs etcd and kube-apiserver, no node.
    Follow,
    /// Only what a run costs to start, on the node of AGENTRUN_KUBECONFIG.
    Start,
    /// The bare proxy that the gateway is measured against; started by the benchmark itself.
    #[command(hide = true)]
    Proxy {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        upstream: SocketAddr,
        /// Folder with `tls.crt` and `tls.key`.
        #[arg(long)]
        certificates: PathBuf,
    },
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if let Some(Part::Proxy { listen, upstream, certificates }) = arguments.part {
        return runtime.block_on(proxy::serve(listen, upstream, &certificates));
    }
    ensure!(!cfg!(debug_assertions), "this is a debug build, whose numbers mean nothing: cargo run --release -p agentrun-bench");
    let mut rows = Vec::new();
    if matches!(arguments.part, None | Some(Part::Call)) {
        rows.extend(runtime.block_on(speed::measure())?);
    }
    if matches!(arguments.part, None | Some(Part::Follow)) {
        rows.extend(runtime.block_on(follow_latency::measure())?);
    }
    if matches!(arguments.part, None | Some(Part::Start)) {
        rows.extend(runtime.block_on(start_cost::measure())?);
    }
    report::print(&rows);
    if arguments.part.is_none() {
        report::write(&rows)?;
    }
    let over: Vec<&str> = rows.iter().filter(|row| row.is_over()).map(|row| row.name.as_str()).collect();
    ensure!(over.is_empty(), "over their limit: {over:?}");
    Ok(())
}
