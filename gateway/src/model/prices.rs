//! What a model costs, by class of token. Pure.

use agentrun_crds::agent_run_status::{ResolvedFallback, ResolvedModel};

use super::usage::Usage;
use crate::budget::Price;

/// Millionths of the price unit per million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    input: i64,
    cached_input: i64,
    cache_write: i64,
    output: i64,
}

impl Prices {
    /// `None`: unpriced. A class without a price of its own costs what other input does.
    pub fn of(model: &ResolvedModel) -> Option<Prices> {
        let (input, output) = (model.input_micros_per_million?, model.output_micros_per_million?);
        let cached_input = model.cached_input_micros_per_million.unwrap_or(input);
        let cache_write = model.cache_write_micros_per_million.unwrap_or(input);
        Some(Prices { input, cached_input, cache_write, output })
    }

    /// The same for the model at another provider.
    pub fn of_fallback(model: &ResolvedFallback) -> Option<Prices> {
        let (input, output) = (model.input_micros_per_million?, model.output_micros_per_million?);
        let cached_input = model.cached_input_micros_per_million.unwrap_or(input);
        let cache_write = model.cache_write_micros_per_million.unwrap_or(input);
        Some(Prices { input, cached_input, cache_write, output })
    }

    /// For a reservation: nobody knows yet what a cache holds.
    pub fn dearest(self) -> Price {
        Price { input: self.input.max(self.cached_input).max(self.cache_write), output: self.output }
    }

    /// Rounded up, so that no fraction is given away.
    pub fn cost(self, usage: Usage) -> i64 {
        let Usage { input_tokens, cached_tokens, written_tokens, output_tokens } = usage;
        let plain = input_tokens.saturating_sub(cached_tokens).saturating_sub(written_tokens).max(0);
        let classes =
            [(plain, self.input), (cached_tokens, self.cached_input), (written_tokens, self.cache_write), (output_tokens, self.output)];
        let sum: i128 = classes.into_iter().map(|(tokens, price)| i128::from(tokens.max(0)) * i128::from(price)).sum();
        i64::try_from((sum + 999_999) / 1_000_000).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICES: Prices = Prices { input: 3_000_000, cached_input: 300_000, cache_write: 6_000_000, output: 15_000_000 };

    #[test]
    fn each_class_at_its_price_and_never_more_than_was_reserved() {
        for (input_tokens, cached_tokens, written_tokens, output_tokens, expected) in [
            (100, 0, 0, 10, 450),
            (100, 100, 0, 0, 30),
            (100, 0, 100, 0, 600),
            (100, 50, 30, 10, 60 + 15 + 180 + 150),
            (1, 1, 0, 0, 1),
            (0, 0, 0, 0, 0),
            (i64::MAX, 0, 0, i64::MAX, i64::MAX),
        ] {
            let usage = Usage { input_tokens, cached_tokens, written_tokens, output_tokens };
            assert_eq!(PRICES.cost(usage), expected, "{usage:?}");
            assert!(PRICES.cost(usage) <= PRICES.dearest().cost(input_tokens, output_tokens), "{usage:?}");
        }
    }
}
