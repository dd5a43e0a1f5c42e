//! The one writer: a thread that takes all waiting jobs into one transaction, commits, and only then answers them. That is
//! the group commit: one fsync for a whole batch. If a batch fails, each of its jobs is tried alone, so that the one that
//! does not fit cannot take others with it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::store::StoreError;

/// Most jobs in one transaction.
const BATCH: usize = 128;

/// A job may run more than once, each time from the same state; what counts is the run that was committed.
trait Job: Send {
    /// `Err`: this job was refused or the storage failed.
    fn run(&mut self, connection: &Connection) -> Result<(), StoreError>;
    fn answer(self: Box<Self>, outcome: Result<(), StoreError>);
}

struct Typed<T, W, C> {
    work: W,
    value: Option<T>,
    committed: C,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, W, C> Job for Typed<T, W, C>
where
    T: Send,
    W: FnMut(&Connection) -> Result<T, StoreError> + Send,
    C: FnOnce(&T) + Send,
{
    fn run(&mut self, connection: &Connection) -> Result<(), StoreError> {
        self.value = None;
        self.value = Some((self.work)(connection)?);
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), StoreError>) {
        let answer = match (outcome, self.value) {
            (Ok(()), Some(value)) => {
                (self.committed)(&value);
                Ok(value)
            }
            (Ok(()), None) => Err(StoreError::Failed("a write ended without a value".into())),
            (Err(error), _) => Err(error),
        };
        // Whoever asked may have gone; the write stands all the same.
        let _ = self.reply.send(answer);
    }
}

enum Task {
    /// Together with others, in one transaction.
    Shared(Box<dyn Job>),
    /// Alone and outside a transaction, so that it sees committed state only.
    Alone(Box<dyn Job>),
}

/// The queue to the writer thread; the thread ends when the last one is dropped.
#[derive(Clone)]
pub(super) struct Writer {
    queue: mpsc::Sender<Task>,
    patience: Duration,
}

impl Writer {
    pub(super) fn start(connection: Connection, queue: usize, patience: Duration) -> Result<Self, StoreError> {
        let (sender, receiver) = mpsc::channel(queue);
        std::thread::Builder::new().name("store-writer".into()).spawn(move || serve(&connection, receiver))?;
        Ok(Writer { queue: sender, patience })
    }

    /// Run `work` in a transaction; after the commit, and before this answers, `committed` runs even if nobody waits any more.
    pub(super) async fn transact<T: Send + 'static>(
        &self,
        work: impl FnMut(&Connection) -> Result<T, StoreError> + Send + 'static,
        committed: impl FnOnce(&T) + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.submit(Task::Shared(Box::new(Typed { work, value: None, committed, reply })), answer).await
    }

    /// Run `work` while nothing else is being written.
    pub(super) async fn alone<T: Send + 'static>(
        &self,
        work: impl FnMut(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.submit(Task::Alone(Box::new(Typed { work, value: None, committed: |_: &T| (), reply })), answer).await
    }

    async fn submit<T>(&self, task: Task, answer: oneshot::Receiver<Result<T, StoreError>>) -> Result<T, StoreError> {
        match self.queue.send_timeout(task, self.patience).await {
            Ok(()) => answer.await.map_err(|_| StoreError::Failed("the writer dropped a write".into()))?,
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => Err(StoreError::Busy),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(StoreError::Failed("the writer has ended".into())),
        }
    }
}

fn serve(connection: &Connection, mut queue: mpsc::Receiver<Task>) {
    let mut next = queue.blocking_recv();
    while let Some(task) = next.take() {
        // A defect in one batch must not end the writer; the batch's callers see their reply dropped.
        let outcome = catch_unwind(AssertUnwindSafe(|| match task {
            Task::Alone(mut job) => {
                let outcome = job.run(connection);
                job.answer(outcome);
                None
            }
            Task::Shared(job) => {
                let mut batch = vec![job];
                let mut after = None;
                while batch.len() < BATCH && after.is_none() {
                    match queue.try_recv() {
                        Ok(Task::Shared(job)) => batch.push(job),
                        Ok(alone) => after = Some(alone),
                        Err(_) => break,
                    }
                }
                commit_batch(connection, batch);
                after
            }
        }));
        next = match outcome {
            Ok(Some(task)) => Some(task),
            Ok(None) => queue.blocking_recv(),
            Err(_) => {
                tracing::error!("a write panicked; its batch was rolled back");
                if !connection.is_autocommit() {
                    let _ = connection.execute_batch("ROLLBACK");
                }
                queue.blocking_recv()
            }
        };
    }
}

fn commit_batch(connection: &Connection, mut batch: Vec<Box<dyn Job>>) {
    match transaction(connection, &mut batch) {
        Ok(outcomes) => {
            for (job, outcome) in batch.into_iter().zip(outcomes) {
                job.answer(outcome);
            }
        }
        Err(error) if batch.len() == 1 => {
            for job in batch {
                job.answer(Err(error.clone()));
            }
        }
        Err(_) => {
            for job in batch {
                commit_batch(connection, vec![job]);
            }
        }
    }
}

/// Every job in a savepoint of its own, so that a refused one leaves no trace. `Err`: nothing of the batch was committed.
fn transaction(connection: &Connection, batch: &mut [Box<dyn Job>]) -> Result<Vec<Result<(), StoreError>>, StoreError> {
    let say = |statement: &str| -> Result<(), StoreError> {
        connection.prepare_cached(statement)?.execute([])?;
        Ok(())
    };
    say("BEGIN IMMEDIATE")?;
    let work = || -> Result<_, StoreError> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for job in batch {
            say("SAVEPOINT job")?;
            let outcome = job.run(connection);
            match &outcome {
                Ok(()) => say("RELEASE job")?,
                // SQLite may have rolled back the whole transaction already.
                Err(error) if error.is_storage() => return Err(error.clone()),
                Err(_) => connection.execute_batch("ROLLBACK TO job; RELEASE job")?,
            }
            outcomes.push(outcome);
        }
        say("COMMIT")?;
        Ok(outcomes)
    };
    let result = work();
    if result.is_err() && !connection.is_autocommit() {
        // If this fails too, the next BEGIN does, and is reported.
        let _ = connection.execute_batch("ROLLBACK");
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer() -> Writer {
        let connection = Connection::open_in_memory().expect("memory");
        connection.execute_batch("CREATE TABLE t (x INTEGER UNIQUE) STRICT").expect("schema");
        Writer::start(connection, 64, Duration::from_secs(1)).expect("thread")
    }

    fn insert(x: i64) -> impl FnMut(&Connection) -> Result<i64, StoreError> + Send + 'static {
        move |connection| {
            connection.execute("INSERT INTO t VALUES (?1)", [x])?;
            Ok(x)
        }
    }

    async fn rows(writer: &Writer) -> i64 {
        writer.alone(|connection| Ok(connection.query_row("SELECT count(*) FROM t", [], |row| row.get(0))?)).await.expect("count")
    }

    #[tokio::test]
    async fn a_refused_job_leaves_no_trace_and_the_rest_of_its_batch_stands() {
        let writer = writer();
        let refused = writer.transact(
            |connection| -> Result<(), _> {
                connection.execute("INSERT INTO t VALUES (99)", [])?;
                Err(StoreError::Closed)
            },
            |_| (),
        );
        let (one, refused, two) = tokio::join!(writer.transact(insert(1), |_| ()), refused, writer.transact(insert(2), |_| ()));
        assert_eq!((one, refused, two), (Ok(1), Err(StoreError::Closed), Ok(2)));
        assert_eq!(rows(&writer).await, 2);
    }

    #[tokio::test]
    async fn a_job_whose_storage_fails_takes_nobody_with_it() {
        let writer = writer();
        writer.transact(insert(7), |_| ()).await.expect("first");
        let (a, b, c) =
            tokio::join!(writer.transact(insert(1), |_| ()), writer.transact(insert(7), |_| ()), writer.transact(insert(2), |_| ()));
        assert_eq!((a, c), (Ok(1), Ok(2)));
        assert!(matches!(b, Err(StoreError::Failed(_))), "{b:?}");
        assert_eq!(rows(&writer).await, 3);
    }

    #[tokio::test]
    async fn a_panic_is_one_failed_write() {
        let writer = writer();
        let boom = writer.transact(|_| -> Result<(), StoreError> { panic!("boom") }, |_| ()).await;
        assert!(matches!(boom, Err(StoreError::Failed(_))), "{boom:?}");
        assert_eq!(writer.transact(insert(1), |_| ()).await, Ok(1));
    }

    #[tokio::test]
    async fn what_was_committed_is_told_even_if_the_caller_has_gone() {
        let writer = writer();
        let (told, hears) = oneshot::channel();
        let future = writer.transact(insert(1), move |x| told.send(*x).expect("heard"));
        // Poll once, so that it is queued, then hang up.
        assert!(futures::FutureExt::now_or_never(future).is_none());
        assert_eq!(hears.await, Ok(1));
    }
}
