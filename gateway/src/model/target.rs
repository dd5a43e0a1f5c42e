//! Where a call may go: the model's providers in their order, those left out that cannot be used or keep failing.

use std::sync::Arc;
use std::time::Duration;

use agentrun_crds::agent_run_status::ResolvedModel;
use tokio::time::Instant;

use super::call::Call;
use super::operation::Operation;
use super::prices::Prices;
use super::provider::Provider;
use super::providers::Providers;
use super::refusal;
use crate::budget::Ask;
use crate::error::ApiError;

/// One provider with its name of the model and its prices.
#[derive(Clone)]
pub struct Target {
    pub provider: Arc<Provider>,
    /// The upstream's name of the model.
    pub model: String,
    pub prices: Option<Prices>,
    most_output: i64,
}

impl Target {
    /// The worst case of one dispatch.
    pub fn ask(&self, call: &Call, requests: i64) -> Ask {
        let price = self.prices.map(Prices::dearest);
        let operation = call.operation();
        if operation.is_free() {
            return Ask { requests: 0, input_tokens: 0, output_tokens: 0, price };
        }
        let output_tokens = if operation.generates() {
            let most = self.most_output.max(1);
            call.wanted_output().map_or(most, |wanted| wanted.min(most))
        } else {
            0
        };
        Ask { requests, input_tokens: call.input_tokens(), output_tokens, price }
    }
}

/// All that can be used, in order; at least one.
pub fn of(providers: &Providers, model: &ResolvedModel, operation: Operation) -> Result<Vec<Target>, ApiError> {
    let named = std::iter::once((&model.provider, &model.model, Prices::of(model), model.max_output_tokens)).chain(
        model
            .fallbacks
            .iter()
            .map(|fallback| (&fallback.provider, &fallback.model, Prices::of_fallback(fallback), fallback.max_output_tokens)),
    );
    let mut spoken = model.dialect;
    let mut targets = Vec::new();
    for (name, model, prices, most_output) in named {
        match providers.get(name) {
            Some(Ok(provider)) if *spoken.get_or_insert(provider.dialect) == provider.dialect => {
                targets.push(Target { provider, model: model.clone(), prices, most_output });
            }
            Some(Ok(_)) => tracing::error!(provider = name, "this ModelProvider spoke another dialect when the run was accepted"),
            Some(Err(error)) => tracing::error!(provider = name, %error, "this ModelProvider cannot be used"),
            None => tracing::error!(provider = name, "there is no such ModelProvider"),
        }
    }
    match spoken {
        Some(spoken) if spoken != operation.dialect() => Err(refusal::other_dialect(spoken)),
        _ if targets.is_empty() => Err(refusal::misconfigured()),
        _ => Ok(targets),
    }
}

/// The first target from `from` on that may be asked now; else how long none may be.
pub fn first_willing(targets: &[Target], from: usize, now: Instant) -> Result<usize, Option<Duration>> {
    let mut shortest = None;
    for (index, target) in targets.iter().enumerate().skip(from) {
        match target.provider.breaker.wait(now) {
            None => return Ok(index),
            Some(wait) => shortest = Some(shortest.map_or(wait, |other: Duration| other.min(wait))),
        }
    }
    Err(shortest)
}
