//! `watch`: a run to its end, live on a terminal, as plain lines in a pipe. Also what `submit --follow` and `logs -f` do.

use std::time::Duration;

use agentrun_crds::agent_run_status::Phase;
use agentrun_protocol::event::EventType;
use serde_json::json;

use crate::arguments::Watch;
use crate::cluster::Cluster;
use crate::door::Door;
use crate::event_line::Teller;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::follow::{Event, Follower};
use crate::live::{Screen, State, TICK};
use crate::output::Output;
use crate::{run_name, runs};

pub async fn run(cluster: &Cluster, arguments: &Watch, output: &Output) -> Result<Exit, Failure> {
    let name = run_name::resolve(cluster, &arguments.run.run).await?;
    to_the_end(cluster, &name, arguments.plain || !output.terminal, arguments.timeout, output).await
}

/// Follow a run; the status is the run's, or `StillRunning` once the time is over.
pub async fn to_the_end(cluster: &Cluster, name: &str, plain: bool, time: Option<Duration>, output: &Output) -> Result<Exit, Failure> {
    let follow = async { if plain { in_lines(cluster, name, output).await } else { live(cluster, name, output).await } };
    within(time, name, output, follow).await
}

/// At most so long.
pub async fn within(
    time: Option<Duration>,
    name: &str,
    output: &Output,
    work: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    match time {
        None => work.await,
        Some(time) => tokio::time::timeout(time, work).await.unwrap_or_else(|_| {
            output.remark(&format!("{name} is still running after {}s; kubectl agentrun watch {name} goes on", time.as_secs()));
            Ok(Exit::StillRunning)
        }),
    }
}

async fn in_lines(cluster: &Cluster, name: &str, output: &Output) -> Result<Exit, Failure> {
    let mut follower = Follower::new(Door { cluster, run: name }, 0, true);
    let (mut last, mut teller) = (None, Teller::default());
    while let Some(event) = follower.next().await? {
        for line in teller.lines(&event, name, output) {
            output.line(&line)?;
        }
        last = Some(event);
    }
    outcome(cluster, name, last, output).await
}

async fn live(cluster: &Cluster, name: &str, output: &Output) -> Result<Exit, Failure> {
    let mut state = State::new(&runs::get(cluster, name).await?);
    let mut screen = Screen::new(output);
    let mut follower = Follower::new(Door { cluster, run: name }, 0, true);
    let mut clock = tokio::time::interval(TICK);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut last, mut teller) = (None, Teller::default());
    loop {
        let next = {
            let next = std::pin::pin!(follower.next());
            let mut next = next;
            loop {
                tokio::select! {
                    biased;
                    event = &mut next => break event,
                    _ = clock.tick() => screen.show(&[], &state)?,
                }
            }
        };
        match next {
            Ok(Some(event)) => {
                state.see(&event);
                screen.show(&teller.lines(&event, name, output), &state)?;
                last = Some(event);
            }
            Ok(None) => break,
            Err(failure) => {
                screen.finish()?;
                return Err(failure);
            }
        }
    }
    screen.finish()?;
    outcome(cluster, name, last, output).await
}

/// How the run ended: by its last event, since the object may be gone by now.
async fn outcome(cluster: &Cluster, name: &str, last: Option<Event>, output: &Output) -> Result<Exit, Failure> {
    let ended = last.filter(|event| event.kind == Some(EventType::End)).and_then(|event| {
        let phase: Phase = serde_json::from_value(event.data["phase"].clone()).ok()?;
        Some((phase, event.data["reason"].as_str().unwrap_or_default().to_owned()))
    });
    let object = runs::find(cluster, name).await.ok().flatten().and_then(|run| runs::ended(&run));
    let (phase, reason, message) = match (ended, object) {
        (_, Some(object)) => object,
        (Some((phase, reason)), None) => (phase, reason, String::new()),
        (None, None) => {
            return Err(Failure::new(Exit::NotSubmitted, format!("the events of {name} have ended, and how it ended is not known")));
        }
    };
    Ok(tell(name, phase, &reason, &message, output))
}

/// One line on standard error, and the status.
pub fn tell(name: &str, phase: Phase, reason: &str, message: &str, output: &Output) -> Exit {
    let exit = Exit::of_run(phase, reason);
    let because = if reason.is_empty() || reason == phase.as_str() { String::new() } else { format!(", {reason}") };
    let message = if message.is_empty() { String::new() } else { format!(": {message}") };
    output.remark(&format!("{name}: {}{because}{message}", json!(phase).as_str().unwrap_or_default()));
    match exit {
        Exit::Succeeded => output.remark(&format!("Its patch: kubectl agentrun diff {name}; kubectl agentrun patch {name} | git apply")),
        Exit::Cancelled => {}
        _ => output.remark(&format!("More: kubectl agentrun why {name}")),
    }
    exit
}
