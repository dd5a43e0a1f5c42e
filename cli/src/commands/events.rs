//! `events` and `logs`: what is there, or with `-f` all to the run's end.

use crate::arguments::{Events, Logs};
use crate::cluster::Cluster;
use crate::door::Door;
use crate::event_line::Teller;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::follow::Follower;
use crate::output::Output;
use crate::{run_name, visible};

/// Most characters of an event's data in a line.
const MOST_CHARS: usize = 400;

/// One line an event: number, time, type, data; or the event itself as JSON.
pub async fn events(cluster: &Cluster, arguments: &Events, output: &Output) -> Result<Exit, Failure> {
    let name = run_name::resolve(cluster, &arguments.run.run).await?;
    let mut follower = Follower::new(Door { cluster, run: &name }, arguments.after, arguments.follow);
    while let Some(event) = follower.next().await? {
        match arguments.output {
            Some(_) => output.line(&visible::json(&event.line))?,
            None => {
                let data = visible::cut(&visible::line(&event.data.to_string()), MOST_CHARS);
                output.line(&format!(
                    "{:>5}  {}  {:<14}  {data}",
                    event.seq,
                    visible::line(&event.time),
                    visible::line(&event.type_name)
                ))?;
            }
        }
    }
    Ok(Exit::Succeeded)
}

/// The same lines as `watch`, whatever the run comes to.
pub async fn logs(cluster: &Cluster, arguments: &Logs, output: &Output) -> Result<Exit, Failure> {
    let name = run_name::resolve(cluster, &arguments.run.run).await?;
    let mut follower = Follower::new(Door { cluster, run: &name }, 0, arguments.follow);
    let mut teller = Teller::default();
    while let Some(event) = follower.next().await? {
        for line in teller.lines(&event, &name, output) {
            output.line(&line)?;
        }
    }
    Ok(Exit::Succeeded)
}
