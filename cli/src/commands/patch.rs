//! `patch` and `diff`: the run's patch, as bytes for `git apply` or `git am`, or for eyes.

use serde_json::Value;

use crate::arguments::{OneRun, Patch};
use crate::cluster::{Cluster, Fault, MAX_ANSWER};
use crate::door::Door;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Color, Output};
use crate::{mailbox, run_name, runs, visible};

/// The very bytes in a pipe; on a terminal made visible, as everything there.
pub async fn patch(cluster: &Cluster, arguments: &Patch, output: &Output) -> Result<Exit, Failure> {
    let name = run_name::resolve(cluster, &arguments.run.run).await?;
    let mut bytes = read(cluster, &name).await?;
    if arguments.mailbox {
        let path = format!("{}/{name}", runs::path(Some(&cluster.namespace)));
        let run: Value = cluster.get(&path).await.map_err(|fault| fault.failure(&format!("reading AgentRun {name}")))?;
        bytes = mailbox::of(&run, &bytes).into();
    }
    if output.terminal {
        output.raw(visible::block(&String::from_utf8_lossy(&bytes)).as_bytes())?;
    } else {
        output.raw(&bytes)?;
    }
    Ok(Exit::Succeeded)
}

pub async fn diff(cluster: &Cluster, arguments: &OneRun, output: &Output) -> Result<Exit, Failure> {
    let name = run_name::resolve(cluster, &arguments.run).await?;
    let bytes = read(cluster, &name).await?;
    for line in String::from_utf8_lossy(&bytes).split_inclusive('\n') {
        // A carriage return is shown here: it is a change that one must see.
        let shown = visible::block(line.strip_suffix('\n').unwrap_or(line)).replace('\r', "\\r");
        let shown = match color(line) {
            Some(color) => output.paint(color, &shown),
            None => shown,
        };
        output.line(&shown)?;
    }
    Ok(Exit::Succeeded)
}

fn color(line: &str) -> Option<Color> {
    match line.as_bytes() {
        [b'd', b'i', b'f', b'f', b' ', ..] => Some(Color::Bold),
        [b'+', b'+', b'+', b' ', ..] | [b'-', b'-', b'-', b' ', ..] => Some(Color::Bold),
        [b'@', b'@', ..] => Some(Color::Cyan),
        [b'+', ..] => Some(Color::Green),
        [b'-', ..] => Some(Color::Red),
        _ => None,
    }
}

async fn read(cluster: &Cluster, name: &str) -> Result<bytes::Bytes, Failure> {
    let door = Door { cluster, run: name };
    let what = format!("reading the patch of {name}");
    match door.patch().await {
        Ok(response) => cluster.body(response, MAX_ANSWER).await.map_err(|fault| door.failure(fault, &what)),
        Err(Fault::Refused(refusal)) if refusal.code == "no_patch" => {
            Err(Failure::new(Exit::Failed, refusal.message).advice(format!("How it stands: kubectl agentrun why {name}")))
        }
        Err(fault) => Err(door.failure(fault, &what)),
    }
}
