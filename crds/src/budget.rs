//! The hard budget: reserve the worst case, settle once, close. Pure and total: checked integers, no clock, no IO.
//! Operator and gateway write the result by compare-and-swap on the live object, so one object decides.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Most open reservations a run may have at once.
pub const MAX_RESERVATIONS: usize = 32;

/// `status.budget`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// Ceilings; an absent dimension is unlimited. Never rises.
    pub limit: Limit,
    /// What is gone for good. Never falls.
    #[serde(default)]
    pub spent: Spent,
    /// Worst cases of calls in flight, and slices that gateways hold in advance; a list-map by id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<Reservation>,
    /// What providers reported beyond what was reserved; more than zero closes the budget and fails the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrun: Option<Amount>,
    /// A closed gate stays closed.
    pub gate: Gate,
}

#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    /// Calls are admitted.
    #[default]
    Open,
    /// The run is about to end: nothing is admitted, and gateways give back what they hold in advance.
    Closing,
    /// For good; what was reserved is charged.
    Closed,
}

/// Ceilings; `None` is unlimited.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Limit {
    pub requests: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<i64>,
    /// Millionths of the price unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<i64>,
}

/// What is gone.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Spent {
    /// Calls that the agent asked for.
    #[serde(default)]
    pub requests: i64,
    /// Calls sent upstream, retries included.
    #[serde(default)]
    pub upstream_attempts: i64,
    #[serde(default)]
    pub input_tokens: i64,
    #[serde(default)]
    pub output_tokens: i64,
    #[serde(default)]
    pub cost_micros: i64,
}

/// An amount in every dimension.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Amount {
    #[serde(default)]
    pub requests: i64,
    #[serde(default)]
    pub input_tokens: i64,
    #[serde(default)]
    pub output_tokens: i64,
    #[serde(default)]
    pub cost_micros: i64,
}

/// What one gateway process has taken: calls in flight, or a slice from which it admits calls without asking.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// Unique; chosen by the gateway.
    pub id: String,
    /// The gateway process that answers for it.
    pub holder: String,
    #[serde(flatten)]
    pub amount: Amount,
    /// Unix seconds.
    pub since: i64,
    /// Part of it is not in use by a call yet, and comes back unless it is used or lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub slice: bool,
}

impl Reservation {
    /// One that holds nothing says that its holder waits for what others hold in advance.
    pub fn is_request(&self) -> bool {
        self.amount == Amount::default()
    }
}

/// Why a reservation was refused.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    #[error("the budget is closed")]
    Closed,
    #[error("the budget's {0} are spent")]
    Exhausted(Dimension),
    #[error("{MAX_RESERVATIONS} calls are in flight already")]
    TooManyInFlight,
}

/// A dimension of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    Requests,
    InputTokens,
    OutputTokens,
    Cost,
}

impl std::fmt::Display for Dimension {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Dimension::Requests => "requests",
            Dimension::InputTokens => "input tokens",
            Dimension::OutputTokens => "output tokens",
            Dimension::Cost => "cost",
        })
    }
}

impl Budget {
    /// A fresh, open budget.
    pub fn new(limit: Limit) -> Self {
        Budget { limit, ..Budget::default() }
    }

    /// Admit one call at its worst case, or say why not: spent + reserved + asked must fit in every dimension.
    pub fn reserve(&mut self, reservation: Reservation) -> Result<(), Refusal> {
        if self.gate != Gate::Open {
            return Err(Refusal::Closed);
        }
        if self.reservations.iter().any(|r| r.id == reservation.id) {
            return Ok(()); // a repeat of a write whose answer was lost
        }
        let ask = reservation.amount;
        for (dimension, limit, spent, held, asked) in [
            (Dimension::Requests, Some(self.limit.requests), self.spent.requests, self.reserved().requests, ask.requests),
            (Dimension::InputTokens, self.limit.input_tokens, self.spent.input_tokens, self.reserved().input_tokens, ask.input_tokens),
            (Dimension::OutputTokens, self.limit.output_tokens, self.spent.output_tokens, self.reserved().output_tokens, ask.output_tokens),
            (Dimension::Cost, self.limit.cost_micros, self.spent.cost_micros, self.reserved().cost_micros, ask.cost_micros),
        ] {
            let total = spent.checked_add(held).and_then(|sum| sum.checked_add(asked));
            if asked < 0 || limit.is_some_and(|limit| total.is_none_or(|total| total > limit)) {
                return Err(Refusal::Exhausted(dimension));
            }
        }
        if self.reservations.len() >= MAX_RESERVATIONS {
            return Err(Refusal::TooManyInFlight);
        }
        self.reservations.push(reservation);
        Ok(())
    }

    /// Replace a reservation by what the call really took; `None` charges the reservation in full (an unknown outcome).
    /// An id that is not there is a no-op, so a repeat is harmless. Usage above the reservation is charged, recorded as
    /// overrun, and closes the gate. Returns whether anything changed.
    pub fn settle(&mut self, id: &str, actual: Option<Amount>, upstream_attempts: i64) -> bool {
        let Some(held) = self.reservations.iter().find(|r| r.id == id).map(|r| r.amount) else { return false };
        match actual {
            None => self.settle_many(id, held, upstream_attempts.max(held.requests), Amount::default()),
            Some(actual) => {
                let excess = actual.saturating_sub(held);
                self.settle_many(id, actual, upstream_attempts, excess);
                if excess != Amount::default() {
                    self.close();
                }
                true
            }
        }
    }

    /// Replace a reservation by the sum of what several calls took; `excess` is what they took beyond their own reservations, and
    /// is recorded as overrun. Whether that closes the budget is for the caller to say.
    pub fn settle_many(&mut self, id: &str, actual: Amount, upstream_attempts: i64, excess: Amount) -> bool {
        let Some(at) = self.reservations.iter().position(|r| r.id == id) else { return false };
        self.reservations.remove(at);
        self.charge(actual, upstream_attempts);
        if excess != Amount::default() {
            let before = self.overrun.unwrap_or_default();
            self.overrun = Some(before.saturating_add(excess));
        }
        true
    }

    /// Close the gate for good and charge every open reservation in full.
    pub fn close(&mut self) {
        self.gate = Gate::Closed;
        for reservation in std::mem::take(&mut self.reservations) {
            let attempts = if reservation.is_request() { 0 } else { reservation.amount.requests.max(1) };
            self.charge(reservation.amount, attempts);
        }
    }

    /// Whether somebody holds more than calls in flight need.
    pub fn has_slices(&self) -> bool {
        self.reservations.iter().any(|reservation| reservation.slice)
    }

    /// For the REQUESTS column: `2/10`. Whoever writes the budget writes this beside it.
    pub fn requests_text(&self) -> String {
        format!("{}/{}", self.spent.requests, self.limit.requests)
    }

    /// For the COST column: `0.0123`.
    pub fn cost_text(&self) -> String {
        crate::quantity::micros_text(self.spent.cost_micros)
    }

    /// The sum of the open reservations.
    pub fn reserved(&self) -> Amount {
        self.reservations.iter().fold(Amount::default(), |sum, r| sum.saturating_add(r.amount))
    }

    fn charge(&mut self, amount: Amount, upstream_attempts: i64) {
        let spent = &mut self.spent;
        spent.requests = spent.requests.saturating_add(amount.requests.max(0));
        spent.upstream_attempts = spent.upstream_attempts.saturating_add(upstream_attempts.max(0));
        spent.input_tokens = spent.input_tokens.saturating_add(amount.input_tokens.max(0));
        spent.output_tokens = spent.output_tokens.saturating_add(amount.output_tokens.max(0));
        spent.cost_micros = spent.cost_micros.saturating_add(amount.cost_micros.max(0));
    }
}

impl Amount {
    /// Per dimension; sticks at the largest integer rather than wrapping.
    pub fn saturating_add(self, other: Amount) -> Amount {
        Amount {
            requests: self.requests.saturating_add(other.requests),
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cost_micros: self.cost_micros.saturating_add(other.cost_micros),
        }
    }

    /// Per dimension, never below 0.
    pub fn saturating_sub(self, other: Amount) -> Amount {
        Amount {
            requests: self.requests.saturating_sub(other.requests).max(0),
            input_tokens: self.input_tokens.saturating_sub(other.input_tokens).max(0),
            output_tokens: self.output_tokens.saturating_sub(other.output_tokens).max(0),
            cost_micros: self.cost_micros.saturating_sub(other.cost_micros).max(0),
        }
    }

    /// The larger of both, per dimension.
    pub fn max(self, other: Amount) -> Amount {
        Amount {
            requests: self.requests.max(other.requests),
            input_tokens: self.input_tokens.max(other.input_tokens),
            output_tokens: self.output_tokens.max(other.output_tokens),
            cost_micros: self.cost_micros.max(other.cost_micros),
        }
    }

    /// The smaller of both, per dimension.
    pub fn min(self, other: Amount) -> Amount {
        Amount {
            requests: self.requests.min(other.requests),
            input_tokens: self.input_tokens.min(other.input_tokens),
            output_tokens: self.output_tokens.min(other.output_tokens),
            cost_micros: self.cost_micros.min(other.cost_micros),
        }
    }

    /// So many of it; sticks at the largest integer.
    pub fn saturating_mul(self, times: i64) -> Amount {
        Amount {
            requests: self.requests.saturating_mul(times),
            input_tokens: self.input_tokens.saturating_mul(times),
            output_tokens: self.output_tokens.saturating_mul(times),
            cost_micros: self.cost_micros.saturating_mul(times),
        }
    }

    /// Whether no dimension is larger than in `other`.
    pub fn fits(self, other: Amount) -> bool {
        self.min(other) == self
    }
}
