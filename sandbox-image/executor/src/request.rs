//! One request in progress: what its handler may use to answer, and the table through which frames find it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64, atomic::Ordering},
};

use agentrun_protocol::executor::{self, Envelope, INITIAL_CREDIT_BYTES, Kind, MAX_CHUNK_BYTES};
use prost::Message;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    credit::Credit,
    failure::{BUSY, Failure, INVALID},
};

/// Requests open at once; a further one is refused.
const MAX_OPEN: usize = 64;

/// What a handler holds.
pub struct Request {
    id: u64,
    out: mpsc::Sender<Envelope>,
    credit: Arc<Credit>,
    pub cancel: CancellationToken,
    chunks: Mutex<mpsc::UnboundedReceiver<Vec<u8>>>,
    owed: Arc<AtomicU64>,
}

impl Request {
    /// Send a part of the answer, once the runner takes more. Errors: cancelled.
    pub async fn emit(&self, payload: Vec<u8>) -> Result<(), Failure> {
        debug_assert!(payload.len() <= MAX_CHUNK_BYTES + 1024);
        let send = async {
            self.credit.take(payload.len()).await;
            let envelope = Envelope { id: self.id, payload, kind: Kind::Chunk.into(), ..Envelope::default() };
            self.out.send(envelope).await.map_err(|_| Failure::cancelled())
        };
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(Failure::cancelled()),
            sent = send => sent,
        }
    }

    /// The same from a blocking thread.
    pub fn emit_blocking(&self, payload: Vec<u8>) -> Result<(), Failure> {
        tokio::runtime::Handle::current().block_on(self.emit(payload))
    }

    /// The next bytes that the runner sent for this request, from a blocking thread. `None`: cancelled or connection lost.
    pub fn chunk_blocking(&self) -> Option<Vec<u8>> {
        let chunk = lock(&self.chunks).blocking_recv()?;
        let bytes = chunk.len() as u64;
        self.owed.fetch_sub(bytes, Ordering::Relaxed);
        let credit = executor::Credit { bytes }.encode_to_vec();
        let envelope = Envelope { id: self.id, payload: credit, kind: Kind::Credit.into(), ..Envelope::default() };
        self.out.blocking_send(envelope).ok()?;
        Some(chunk)
    }

    /// Errors if the request was cancelled; long loops ask between steps.
    pub fn check(&self) -> Result<(), Failure> {
        if self.cancel.is_cancelled() { Err(Failure::cancelled()) } else { Ok(()) }
    }
}

struct Open {
    cancel: CancellationToken,
    credit: Arc<Credit>,
    chunks: mpsc::UnboundedSender<Vec<u8>>,
    /// Bytes received that the handler has not taken yet.
    owed: Arc<AtomicU64>,
}

/// Requests in progress by id.
#[derive(Default)]
pub struct Table(Mutex<HashMap<u64, Open>>);

impl Table {
    /// Enter a request. Refuses an id in use, and too many.
    pub fn open(&self, id: u64, out: mpsc::Sender<Envelope>) -> Result<Request, Failure> {
        let mut table = lock(&self.0);
        if table.contains_key(&id) {
            return Err(Failure::new(INVALID, format!("id: request {id} is in progress already")));
        }
        if table.len() >= MAX_OPEN {
            return Err(Failure::new(BUSY, format!("{MAX_OPEN} requests are in progress; end one first")));
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let open = Open { cancel: CancellationToken::new(), credit: Arc::new(Credit::new()), chunks: sender, owed: Arc::default() };
        let request = Request {
            id,
            out,
            credit: open.credit.clone(),
            cancel: open.cancel.clone(),
            chunks: Mutex::new(receiver),
            owed: open.owed.clone(),
        };
        table.insert(id, open);
        Ok(request)
    }

    /// Forget a request that has been answered.
    pub fn close(&self, id: u64) {
        lock(&self.0).remove(&id);
    }

    /// Bytes for a request. One that got more than its credit is cancelled; frames for an ended one are ignored.
    pub fn chunk(&self, id: u64, payload: Vec<u8>) {
        let table = lock(&self.0);
        let Some(open) = table.get(&id) else { return };
        let owed = open.owed.fetch_add(payload.len() as u64, Ordering::Relaxed) + payload.len() as u64;
        if owed > INITIAL_CREDIT_BYTES || open.chunks.send(payload).is_err() {
            open.cancel.cancel();
        }
    }

    pub fn credit(&self, id: u64, bytes: u64) {
        if let Some(open) = lock(&self.0).get(&id) {
            open.credit.grant(bytes);
        }
    }

    pub fn cancel(&self, id: u64) {
        if let Some(open) = lock(&self.0).get_mut(&id) {
            open.cancel.cancel();
            // A handler that waits for bytes wakes up when their sender is gone.
            open.chunks = mpsc::unbounded_channel().0;
        }
    }

    pub fn cancel_all(&self) {
        let ids: Vec<u64> = lock(&self.0).keys().copied().collect();
        ids.into_iter().for_each(|id| self.cancel(id));
    }
}

/// A poisoned lock only says that another request's handler panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ids_are_used_once_at_a_time_and_their_number_is_bounded() {
        let (out, _in) = mpsc::channel(1);
        let table = Table::default();
        let _requests: Vec<_> = (0..MAX_OPEN as u64).map(|id| table.open(id, out.clone()).unwrap()).collect();
        assert_eq!(table.open(0, out.clone()).err().unwrap().code, INVALID);
        assert_eq!(table.open(999, out.clone()).err().unwrap().code, BUSY);
        table.close(0);
        assert!(table.open(0, out).is_ok());
    }

    #[tokio::test]
    async fn a_sender_over_its_credit_is_cancelled() {
        let (out, _in) = mpsc::channel(1);
        let table = Table::default();
        let request = table.open(1, out).unwrap();
        table.chunk(1, vec![0; INITIAL_CREDIT_BYTES as usize]);
        assert!(request.check().is_ok());
        table.chunk(1, vec![0]);
        assert!(request.check().is_err());
        table.chunk(77, vec![0]);
    }
}
