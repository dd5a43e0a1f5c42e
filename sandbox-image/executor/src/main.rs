//! The executor: the hostile half of a sandbox Pod. It runs commands and file operations in the workspace for the runner,
//! over one gRPC stream on a Unix socket. It holds no secret, so whoever takes it over gains nothing but the workspace.

mod command;
mod credit;
mod descendants;
mod environment;
mod exec;
mod failure;
mod fs_edit;
mod fs_list;
mod fs_manifest;
mod fs_read;
mod fs_search;
mod fs_write;
mod install;
mod methods;
mod request;
mod serve;
mod strays;
mod walk;
mod workspace;

use std::{ffi::OsString, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "agentrun-executor", version, about = "Runs an agent's commands and file operations in a sandbox")]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Copy this program to a path, so that a container of any image can run it.
    Install { destination: PathBuf },
    /// Connect to the runner and serve its requests until the connection ends.
    Serve {
        /// The runner's Unix socket; awaited for up to two minutes.
        #[arg(long)]
        socket: PathBuf,
        /// The workspace.
        #[arg(long)]
        root: PathBuf,
        /// The home directory of commands, which may be written to by request. Default: /tmp, and it may not.
        #[arg(long)]
        home: Option<PathBuf>,
    },
    /// Run one command and leave none of its descendants behind. Started by `serve`, not by people.
    #[command(hide = true)]
    Command {
        /// Milliseconds between SIGTERM and SIGKILL when it is ended from outside.
        #[arg(long, default_value_t = 0)]
        grace: u64,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        argv: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().action {
        Action::Command { grace, argv } => return command::run(&argv, Duration::from_millis(grace)),
        Action::Install { destination } => install::install(&destination),
        Action::Serve { socket, root, home } => serve::run(&socket, &root, home.as_deref()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agentrun-executor: {error:#}");
            ExitCode::FAILURE
        }
    }
}
