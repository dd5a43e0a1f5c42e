//! What the model calls of an agent tell about its run: how many there were, and whether one was refused for good.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicI64, Ordering},
};

use agentrun_protocol::{event::EventType, result::Outcome};
use serde_json::json;
use tokio::sync::watch;

use crate::events::Events;

/// Counts calls and remembers refusals.
pub struct Calls {
    events: Events,
    max_steps: i64,
    begun: AtomicI64,
    last: watch::Sender<Option<(Outcome, String)>>,
    /// The provider's last failure, while no call after it went well.
    provider: Mutex<Option<(Outcome, String)>>,
}

impl Calls {
    pub fn new(events: Events, max_steps: i64) -> Self {
        Calls { events, max_steps, begun: AtomicI64::new(0), last: watch::Sender::new(None), provider: Mutex::default() }
    }

    /// One more call. False: it would be one too many, and the run ends.
    pub fn begin(&self) -> bool {
        let step = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        if step > self.max_steps {
            self.begun.fetch_sub(1, Ordering::Relaxed);
            self.end(Outcome::StepLimit, format!("the agent used all of its {} steps", self.max_steps));
            return false;
        }
        self.events.emit(EventType::Step, json!({"step": step, "maxSteps": self.max_steps}));
        true
    }

    /// How many calls there were.
    pub fn steps(&self) -> i64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// A call went well.
    pub fn answered(&self) {
        self.provider.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// The gateway, or we, refused a call.
    pub fn refused(&self, status: u16, code: &str, message: &str) {
        match (status, code) {
            (_, "model_request_budget_exhausted" | "namespace_budget_exhausted" | "unpriced_model") => {
                self.end(Outcome::BudgetExhausted, message.to_owned())
            }
            (401, "inactive_run_token") => self.end(Outcome::AgentError, format!("the run is no longer active: {message}")),
            (_, "provider_auth_failed") => self.provider_failed(Outcome::ProviderAuthFailed, message),
            (_, "provider_misconfigured") => self.provider_failed(Outcome::ProviderMisconfigured, message),
            (408 | 429 | 500.., code) if code.starts_with("provider_") => self.provider_failed(Outcome::ProviderUnavailable, message),
            (408 | 429 | 500.., _) => self.provider_failed(Outcome::GatewayUnavailable, message),
            _ => {}
        }
    }

    fn provider_failed(&self, outcome: Outcome, message: &str) {
        *self.provider.lock().unwrap_or_else(PoisonError::into_inner) = Some((outcome, message.to_owned()));
    }

    fn end(&self, outcome: Outcome, why: String) {
        // The first reason is the reason.
        self.last.send_if_modified(|last| {
            let first = last.is_none();
            last.get_or_insert((outcome, why));
            first
        });
    }

    /// Until the run has to end, and why.
    pub async fn over(&self) -> (Outcome, String) {
        let mut last = self.last.subscribe();
        loop {
            if let Some(end) = last.borrow_and_update().clone() {
                return end;
            }
            if last.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The provider's failure, if the last call ended with one.
    pub fn provider(&self) -> Option<(Outcome, String)> {
        self.provider.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
