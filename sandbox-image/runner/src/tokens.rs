//! The run's three tokens: in memory only, renewed by themselves before they end.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use agentrun_protocol::{
    exchange::{ExchangeResponse, RenewResponse},
    routes,
    token::Audience,
};
use bytes::Bytes;
use http::Method;
use tokio::time::{Instant, sleep};

use crate::{
    credentials::Secret,
    deadline::unix_now,
    gateway::{Again, Answer, Call, CallError, Transport},
};

/// A token is renewed when this share of its life has passed.
const RENEW_AT: f64 = 0.6;
const SHORTEST_WAIT: Duration = Duration::from_secs(5);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Tokens by audience.
pub struct Tokens {
    slots: [RwLock<Arc<Secret>>; 3],
}

const MODEL: usize = 0;
const EVENTS: usize = 1;
const APPROVALS: usize = 2;

impl Tokens {
    pub fn new(response: ExchangeResponse) -> Self {
        let ExchangeResponse { model_token, events_token, approvals_token, expires_at: _ } = response;
        Tokens { slots: [model_token, events_token, approvals_token].map(|token| RwLock::new(Arc::new(Secret::new(token)))) }
    }

    /// The token for an audience.
    pub fn of(&self, audience: Audience) -> Arc<Secret> {
        self.get(match audience {
            Audience::Model => MODEL,
            Audience::Events => EVENTS,
            Audience::Approvals => APPROVALS,
        })
    }

    pub fn model(&self) -> Arc<Secret> {
        self.get(MODEL)
    }

    fn get(&self, slot: usize) -> Arc<Secret> {
        self.slots[slot].read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keep all tokens fresh until the gateway refuses. `expires_at` is what the exchange said.
    pub async fn keep_fresh(self: Arc<Self>, transport: Transport, mut expires_at: i64) {
        loop {
            let life = Duration::from_secs(u64::try_from(expires_at.saturating_sub(unix_now())).unwrap_or_default());
            sleep(life.mul_f64(RENEW_AT).max(SHORTEST_WAIT)).await;
            let until = Instant::now() + life.mul_f64(1.0 - RENEW_AT);
            for slot in 0..self.slots.len() {
                match self.renew(&transport, slot, until).await {
                    Ok(at) => expires_at = at,
                    // The run is over or closed; whoever uses the token next is told so.
                    Err(error) if !error.is_transient() => return,
                    Err(_) => {}
                }
            }
        }
    }

    async fn renew(&self, transport: &Transport, slot: usize, until: Instant) -> Result<i64, CallError> {
        let old = self.get(slot);
        let call = Call {
            method: Method::POST,
            path: routes::RENEW.to_owned(),
            token: Some(&old),
            body: Bytes::new(),
            content_type: "application/json",
            timeout: CALL_TIMEOUT,
        };
        let mut again = Again::until(until);
        let body = loop {
            match transport.call(&call).await.and_then(Answer::success) {
                Err(error) if again.after(&error).await => {}
                other => break other?,
            }
        };
        // Serde's errors quote what they read, which is a token here.
        let fresh: RenewResponse =
            serde_json::from_slice(&body).map_err(|_| CallError::NoAnswer("its answer to a renewal cannot be read".into()))?;
        *self.slots[slot].write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Secret::new(fresh.token));
        Ok(fresh.expires_at)
    }
}
