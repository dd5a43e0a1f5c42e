//! `kubectl agentrun`: what people do with AgentRuns, with nothing but a kubeconfig. AgentRuns go through the API server;
//! events, approvals, sources and results through the API that the gateway serves behind it.

mod advice;
mod archive;
mod arguments;
mod checks;
mod cluster;
mod commands;
mod complete;
#[cfg(test)]
mod documented;
mod door;
mod event_line;
mod exit;
mod failure;
mod follow;
mod hint;
mod live;
mod mailbox;
mod manifest;
mod output;
mod run_name;
mod runs;
mod tree;
mod upload;
mod visible;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use tokio::signal::unix::{SignalKind, signal};

use crate::arguments::{Arguments, Command, DryRun};
use crate::cluster::Cluster;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

fn main() -> ExitCode {
    let matches = Arguments::command().after_long_help(exit::help()).get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    // Only fails if one is installed already, and this is the first.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let ended = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => {
            let ended = runtime.block_on(interruptible(&arguments));
            runtime.shutdown_background();
            ended
        }
        Err(error) => Err(Failure::local("starting", &error)),
    };
    let exit = ended.unwrap_or_else(|failure| {
        if !failure.is_silent() {
            let _ = std::io::stderr().write_all(failure.shown().as_bytes());
        }
        failure.exit
    });
    ExitCode::from(exit.code())
}

/// The keyboard ends us, not the run.
async fn interruptible(arguments: &Arguments) -> Result<Exit, Failure> {
    // Before anything else: the first output may be there before the first turn of the select.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| Failure::local("listening for the keyboard", &error))?;
    tokio::select! {
        ended = run(arguments) => ended,
        _ = interrupt.recv() => {
            if matches!(arguments.command, Command::Submit(_) | Command::Watch(_) | Command::Rerun(_) | Command::Wait(_)) {
                let _ = writeln!(std::io::stderr(), "\ninterrupted; a run that was submitted goes on: kubectl agentrun list");
            }
            Ok(Exit::Interrupted)
        }
    }
}

async fn run(arguments: &Arguments) -> Result<Exit, Failure> {
    let output = Output::new(arguments.color);
    // What needs no cluster.
    match &arguments.command {
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "kubectl-agentrun", &mut script);
            output.raw(&script)?;
            return Ok(Exit::Succeeded);
        }
        Command::Complete { words } => {
            output.raw(complete::answer(words).await.as_bytes())?;
            return Ok(Exit::Succeeded);
        }
        Command::Version => {
            output.line(&format!(
                "kubectl-agentrun {} ({}/{})",
                env!("CARGO_PKG_VERSION"),
                agentrun_crds::GROUP,
                agentrun_crds::VERSION
            ))?;
            return Ok(Exit::Succeeded);
        }
        Command::Submit(submit) if submit.dry_run == Some(DryRun::Client) => {
            return commands::submit::dry(submit, arguments.connection.namespace.as_deref(), &output);
        }
        _ => {}
    }
    hint::remember(&arguments.connection);
    let mut cluster = Cluster::connect(&arguments.connection).await?;
    match &arguments.command {
        Command::Submit(submit) => Box::pin(commands::submit::run(&mut cluster, submit, &output)).await,
        Command::List(list) => Box::pin(commands::list::run(&cluster, list, &output)).await,
        Command::Watch(watch) => Box::pin(commands::watch::run(&cluster, watch, &output)).await,
        Command::Logs(logs) => commands::events::logs(&cluster, logs, &output).await,
        Command::Events(events) => commands::events::events(&cluster, events, &output).await,
        Command::Approvals(approvals) => commands::approvals::run(&cluster, approvals, &output).await,
        Command::Approve(approve) => commands::decide::approve(&cluster, approve, &output).await,
        Command::Deny(deny) => commands::decide::deny(&cluster, deny, &output).await,
        Command::Cancel(cancel) => Box::pin(commands::cancel::run(&cluster, cancel, &output)).await,
        Command::Patch(run) => commands::patch::patch(&cluster, run, &output).await,
        Command::Diff(run) => commands::patch::diff(&cluster, run, &output).await,
        Command::Artifacts(artifacts) => commands::artifacts::run(&cluster, artifacts, &output).await,
        Command::Why(run) => commands::why::run(&cluster, run, &output).await,
        Command::Rerun(rerun) => Box::pin(commands::rerun::run(&cluster, rerun, &output)).await,
        Command::Wait(wait) => Box::pin(commands::wait::run(&cluster, wait, &output)).await,
        Command::Usage(usage) => commands::usage::run(&cluster, usage, &output).await,
        Command::Doctor => commands::doctor::run(&cluster, &output).await,
        Command::Completion { .. } | Command::Complete { .. } | Command::Version => Ok(Exit::Succeeded),
    }
}
