//! The token key ring, hot: handlers take the current one, a watch of the Secret replaces it.

use std::sync::Arc;

use agentrun_protocol::token::KeyRing;
use tokio::sync::watch;

/// The current key ring. Cheap to clone; no `Debug`.
#[derive(Clone)]
pub struct TokenKeys(watch::Receiver<Arc<KeyRing>>);

impl TokenKeys {
    /// The sender replaces the ring.
    pub fn new(ring: KeyRing) -> (watch::Sender<Arc<KeyRing>>, TokenKeys) {
        let (sender, receiver) = watch::channel(Arc::new(ring));
        (sender, TokenKeys(receiver))
    }

    pub fn current(&self) -> Arc<KeyRing> {
        self.0.borrow().clone()
    }
}
