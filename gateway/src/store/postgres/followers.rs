//! Tells followers on every gateway that a log has grown. Whoever appended announces it a moment later, together with others
//! and outside the append's transaction, which the server would else commit one at a time. What gets lost is found by looking.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tokio_postgres::AsyncMessage;
use tokio_util::task::AbortOnDropHandle;

use super::database::Database;
use super::failure::text;
use super::options::Address;
use crate::store::StoreError;
use crate::store::wakes::Wakes;

const CHANNEL: &str = "agentrun_log_grew";
/// How long an announcement waits for others.
const TOGETHER: Duration = Duration::from_millis(10);
/// How often logs that are followed are looked at.
const LOOK: Duration = Duration::from_secs(1);
const RECONNECT: Duration = Duration::from_secs(1);

pub(super) struct Followers {
    wakes: Wakes,
    grown: Arc<Grown>,
    _tasks: [AbortOnDropHandle<()>; 3],
}

/// Logs that grew here and have not been announced.
#[derive(Default)]
struct Grown {
    uids: Mutex<HashSet<String>>,
    some: Notify,
}

impl Followers {
    pub fn start(database: Database, address: Address) -> Self {
        let (wakes, grown) = (Wakes::default(), Arc::new(Grown::default()));
        // Our own announcements come back to us too.
        let sender = uuid::Uuid::new_v4().to_string();
        let tasks = [
            tokio::spawn(announce(database.clone(), grown.clone(), sender.clone())),
            tokio::spawn(listen(address, wakes.clone(), sender)),
            tokio::spawn(look(database, wakes.clone())),
        ];
        Followers { wakes, grown, _tasks: tasks.map(AbortOnDropHandle::new) }
    }

    pub fn subscribe(&self, run_uid: &str) -> watch::Receiver<u64> {
        self.wakes.subscribe(run_uid)
    }

    /// The log has grown here.
    pub fn tell(&self, run_uid: &str) {
        self.wakes.wake(run_uid);
        self.grown.uids.lock().unwrap_or_else(PoisonError::into_inner).insert(run_uid.to_owned());
        self.grown.some.notify_one();
    }
}

async fn announce(database: Database, grown: Arc<Grown>, sender: String) {
    loop {
        grown.some.notified().await;
        sleep(TOGETHER).await;
        let uids: Vec<String> = std::mem::take(&mut *grown.uids.lock().unwrap_or_else(PoisonError::into_inner)).into_iter().collect();
        let sql = "SELECT pg_notify($1, $2 || ' ' || uid) FROM unnest($3::text[]) AS uid";
        if let Err(error) = database.query(sql, &[&CHANNEL, &sender, &uids]).await {
            tracing::debug!(%error, "growth of logs could not be announced; other gateways will see it when they look");
        }
    }
}

async fn listen(address: Address, wakes: Wakes, sender: String) {
    loop {
        if let Err(error) = listen_once(&address, &wakes, &sender).await {
            tracing::warn!(error = text(&error), "the connection that listens for growth of logs was lost; connecting again");
        }
        sleep(RECONNECT).await;
    }
}

/// Until the connection is lost.
async fn listen_once(address: &Address, wakes: &Wakes, sender: &str) -> Result<(), tokio_postgres::Error> {
    let (client, mut connection) = address.config.connect(address.tls.clone()).await?;
    let listen = format!("LISTEN {CHANNEL}");
    let mut begin = std::pin::pin!(client.batch_execute(&listen).fuse());
    loop {
        // The statement goes out, and its answer comes in, while messages are taken.
        let message = tokio::select! {
            begun = &mut begin => {
                begun?;
                continue;
            }
            message = poll_fn(|context| connection.poll_message(context)) => message,
        };
        match message {
            Some(Ok(AsyncMessage::Notification(notification))) => match notification.payload().split_once(' ') {
                Some((from, uid)) if from != sender => wakes.wake(uid),
                _ => {}
            },
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error),
            None => return Ok(()),
        }
    }
}

async fn look(database: Database, wakes: Wakes) {
    let mut seen: HashMap<String, i64> = HashMap::new();
    loop {
        sleep(LOOK).await;
        let followed = wakes.followed();
        if followed.is_empty() {
            seen.clear();
            continue;
        }
        match numbers(&database, &followed).await {
            Ok(found) => {
                for (uid, next) in &found {
                    if seen.get(uid) != Some(next) {
                        wakes.wake(uid);
                    }
                }
                seen = found;
            }
            Err(error) => tracing::warn!(%error, "followed logs cannot be looked at; it is tried again"),
        }
    }
}

async fn numbers(database: &Database, uids: &[String]) -> Result<HashMap<String, i64>, StoreError> {
    let rows = database.query("SELECT uid, next FROM runs WHERE uid = ANY($1)", &[&uids]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}
