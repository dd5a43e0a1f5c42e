//! `agentrun-runner`: the command line, signals, exit status and termination message around the library.

use std::{io::Write, path::PathBuf, process::ExitCode, sync::Arc};

use agentrun_crds::conditions::Reason;
use agentrun_runner::{
    Config, clip, confinement,
    network::{Network, Place},
    run, termination,
};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[derive(Parser)]
#[command(name = "agentrun-runner", version, about = "Runs an agent in a sandbox Pod and reports what it changed")]
struct Arguments {
    /// The gateway's sandbox listener, such as https://agentrun-gateway.agentrun-system.svc:8443.
    #[arg(long)]
    gateway: String,
    /// Directory with the one-shot `ticket` and the gateway's `ca.crt`.
    #[arg(long)]
    ticket_dir: PathBuf,
    /// File with the Pod-bound ServiceAccount token.
    #[arg(long)]
    pod_token: PathBuf,
    /// Unix socket to make, for the executor.
    #[arg(long)]
    socket: PathBuf,
    /// Who must not be reached, as TARGET=tcp/PORT/ADDRESS; the run does not begin, or ends, where one is.
    #[arg(long)]
    fenced: Vec<Place>,
    /// The same, but only reported.
    #[arg(long)]
    observed: Vec<Place>,
    /// File for the reason of a failure.
    #[arg(long, default_value = "/dev/termination-log")]
    termination_log: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Before dumps are switched off, which would hide some of it from ourselves.
    let facts = confinement::ProcFacts::read();
    let config = Config {
        gateway: arguments.gateway,
        ticket_dir: arguments.ticket_dir,
        pod_token: arguments.pod_token,
        socket: arguments.socket,
        hosts: "/etc/hosts".into(),
        network: Network { fenced: arguments.fenced, observed: arguments.observed, patience: Network::PATIENCE, period: Network::PERIOD },
        lines: Arc::new(print),
    };
    let outcome = confinement::harden().and_then(|()| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|error| termination::Failed::new(Reason::SandboxLost, format!("the runner could not start: {error}")))?;
        let outcome = runtime.block_on(async {
            let stop = CancellationToken::new();
            stop_on_sigterm(&stop);
            run(config, &facts, stop).await
        });
        runtime.shutdown_background();
        outcome
    });
    match outcome {
        Ok(verdict) => {
            print(&format!("the gateway accepted the result: {}", clip::printable(&verdict.verdict)));
            ExitCode::SUCCESS
        }
        Err(failed) => {
            print(&clip::printable(&format!("{}: {}", failed.reason.as_str(), failed.message)));
            termination::write(&arguments.termination_log, &failed);
            ExitCode::from(failed.exit_code())
        }
    }
}

fn stop_on_sigterm(stop: &CancellationToken) {
    // As process 1 of its container the runner would ignore a signal that it does not handle.
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        if let Ok(mut received) = signal(kind) {
            let stop = stop.clone();
            tokio::spawn(async move {
                received.recv().await;
                stop.cancel();
            });
        }
    }
}

/// A reader of the log that goes away is no reason to end, which `println!` would.
fn print(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
