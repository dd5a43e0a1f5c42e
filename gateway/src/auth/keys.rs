//! The token key ring, hot: handlers take the current one, a watch of the Secret replaces it. A ring that cannot be used never
//! replaces one that can.

use std::sync::Arc;

use agentrun_crds::names;
use agentrun_protocol::token::{KeyRing, KeyRingError};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use tokio::sync::{oneshot, watch};

use crate::followed::follow;

/// The current key ring. Cheap to clone; no `Debug`.
#[derive(Clone)]
pub struct TokenKeys(watch::Receiver<Arc<KeyRing>>);

/// Why the Secret's keys cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenKeysError {
    #[error("Secret {secret}: the entry name {0:?} is not a decimal key id", secret = names::TOKEN_KEYS_SECRET)]
    BadId(String),
    #[error("Secret {secret}: {0}", secret = names::TOKEN_KEYS_SECRET)]
    BadKeys(#[from] KeyRingError),
    #[error("the watch of Secret {secret} has ended", secret = names::TOKEN_KEYS_SECRET)]
    Ended,
}

impl TokenKeys {
    /// The sender replaces the ring.
    pub fn new(ring: KeyRing) -> (watch::Sender<Arc<KeyRing>>, TokenKeys) {
        let (sender, receiver) = watch::channel(Arc::new(ring));
        (sender, TokenKeys(receiver))
    }

    pub fn current(&self) -> Arc<KeyRing> {
        self.0.borrow().clone()
    }

    /// Wait for the Secret, refuse it if its keys are weak, and follow it from then on.
    pub async fn follow(client: Client, namespace: String) -> Result<TokenKeys, TokenKeysError> {
        let (first, waiting) = oneshot::channel();
        let mut first = Some(first);
        let mut sender: Option<watch::Sender<Arc<KeyRing>>> = None;
        tokio::spawn(follow(client, namespace, names::TOKEN_KEYS_SECRET, move |secret: Secret| match (ring(secret), &sender) {
            (Ok(ring), Some(sender)) => {
                sender.send_replace(Arc::new(ring));
                tracing::info!("token keys taken");
            }
            (Ok(ring), None) => {
                let (new, keys) = TokenKeys::new(ring);
                sender = Some(new);
                if let Some(first) = first.take() {
                    let _ = first.send(Ok(keys));
                }
            }
            (Err(error), Some(_)) => tracing::error!(%error, "the token keys before are kept"),
            (Err(error), None) => {
                if let Some(first) = first.take() {
                    let _ = first.send(Err(error));
                }
            }
        }));
        waiting.await.unwrap_or(Err(TokenKeysError::Ended))
    }
}

fn ring(secret: Secret) -> Result<KeyRing, TokenKeysError> {
    let mut masters = Vec::new();
    for (id, master) in secret.data.unwrap_or_default() {
        let number: u32 = id.parse().ok().filter(|number: &u32| number.to_string() == id).ok_or(TokenKeysError::BadId(id))?;
        masters.push((number, master.0));
    }
    Ok(KeyRing::new(masters)?)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn weak_or_odd_keys_are_refused() {
        let parse = |entries: &[(&str, usize)]| {
            let data = entries.iter().map(|(id, length)| ((*id).to_owned(), ByteString(vec![7; *length]))).collect();
            ring(Secret { data: Some(data), ..Secret::default() }).err()
        };
        assert_eq!(parse(&[("1", 32), ("2", 64)]), None);
        assert_eq!(parse(&[]), Some(TokenKeysError::BadKeys(KeyRingError::Empty)));
        assert_eq!(parse(&[("1", 32), ("2", 31)]), Some(TokenKeysError::BadKeys(KeyRingError::TooShort(2, 31))));
        for id in ["a", "01", "+1", "-1", "4294967296", ""] {
            assert_eq!(parse(&[(id, 32)]), Some(TokenKeysError::BadId(id.into())), "{id}");
        }
    }
}
