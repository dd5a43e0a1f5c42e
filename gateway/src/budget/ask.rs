//! The worst case of one call, and how much output the budget still admits. Pure.

use agentrun_crds::budget::{Amount, Budget, Dimension, Gate, Limit};

use super::NotAdmitted;

/// Fewer output tokens than this are not worth a call, unless the caller asked for fewer.
const LEAST_OUTPUT: i64 = 16;

/// Millionths of the price unit per million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    pub input: i64,
    pub output: i64,
}

impl Price {
    /// Rounded up, so that no fraction is given away.
    pub fn cost(self, input_tokens: i64, output_tokens: i64) -> i64 {
        let sum = i128::from(input_tokens.max(0)) * i128::from(self.input) + i128::from(output_tokens.max(0)) * i128::from(self.output);
        i64::try_from((sum + 999_999) / 1_000_000).unwrap_or(i64::MAX)
    }

    /// Most output tokens that `micros` pay for.
    fn output_for(self, micros: i128) -> i64 {
        if self.output <= 0 {
            return i64::MAX;
        }
        i64::try_from(micros.max(0) * 1_000_000 / i128::from(self.output)).unwrap_or(i64::MAX)
    }
}

/// What one upstream dispatch may take at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// 1; 0 for the retry of a request that was counted already.
    pub requests: i64,
    pub input_tokens: i64,
    /// Wanted by the caller, already at most the model's own maximum.
    pub output_tokens: i64,
    /// `None`: unpriced.
    pub price: Option<Price>,
}

/// The admitted worst case; `amount.output_tokens` is what the request must be clamped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    pub amount: Amount,
}

/// How much of `ask` fits into what is neither spent nor reserved.
pub fn plan(budget: &Budget, ask: &Ask) -> Result<Granted, NotAdmitted> {
    if budget.gate != Gate::Open {
        return Err(NotAdmitted::Inactive);
    }
    let Limit { requests, input_tokens, output_tokens, cost_micros } = budget.limit;
    let (spent, held) = (&budget.spent, budget.reserved());
    let refuse = |dimension, fits_without_held| {
        if fits_without_held { NotAdmitted::Contended(dimension) } else { NotAdmitted::Exhausted(dimension) }
    };
    if ask.requests > 0 {
        let left = i128::from(requests) - i128::from(spent.requests);
        if left - i128::from(held.requests) < i128::from(ask.requests) {
            // A request in flight will count one whatever it takes, so what calls hold is as good as spent; a slice may come back.
            let slices: i64 = budget.reservations.iter().filter(|r| r.slice).fold(0, |sum, r| sum.saturating_add(r.amount.requests));
            let in_flight = i128::from(held.requests) - i128::from(slices);
            return Err(refuse(Dimension::Requests, left - in_flight >= i128::from(ask.requests)));
        }
    }

    if let Some(limit) = input_tokens {
        let left = i128::from(limit) - i128::from(spent.input_tokens);
        if left - i128::from(held.input_tokens) < i128::from(ask.input_tokens) {
            return Err(refuse(Dimension::InputTokens, left >= i128::from(ask.input_tokens)));
        }
    }
    let least = ask.output_tokens.min(LEAST_OUTPUT);
    let mut output = ask.output_tokens;
    if let Some(limit) = output_tokens {
        let left = i128::from(limit) - i128::from(spent.output_tokens);
        let free = left - i128::from(held.output_tokens);
        if free < i128::from(least) {
            return Err(refuse(Dimension::OutputTokens, left >= i128::from(least)));
        }
        output = output.min(i64::try_from(free).unwrap_or(i64::MAX));
    }
    let cost = match (cost_micros, ask.price) {
        (Some(_), None) => return Err(NotAdmitted::Unpriced),
        (None, price) => price.map_or(0, |price| price.cost(ask.input_tokens, output)),
        (Some(limit), Some(price)) => {
            let left = i128::from(limit) - i128::from(spent.cost_micros);
            let free = left - i128::from(held.cost_micros);
            let floor = i128::from(price.cost(ask.input_tokens, least));
            if free < floor {
                return Err(refuse(Dimension::Cost, left >= floor));
            }
            // Rounding the input up first keeps the sum within what is free.
            output = output.min(price.output_for(free - i128::from(price.cost(ask.input_tokens, 0)))).max(least);
            price.cost(ask.input_tokens, output)
        }
    };
    Ok(Granted { amount: Amount { requests: ask.requests, input_tokens: ask.input_tokens, output_tokens: output, cost_micros: cost } })
}

#[cfg(test)]
mod tests {
    use agentrun_crds::budget::{Reservation, Spent};
    use proptest::prelude::*;

    use super::*;

    const ASK: Ask = Ask { requests: 1, input_tokens: 100, output_tokens: 50, price: Some(Price { input: 1_000_000, output: 2_000_000 }) };

    fn budget(limit: Limit, spent: Spent, held: &[Amount]) -> Budget {
        let mut budget = Budget::new(limit);
        budget.spent = spent;
        budget.reservations = held
            .iter()
            .enumerate()
            .map(|(n, amount)| Reservation { id: format!("{n}"), holder: "h".into(), amount: *amount, ..Reservation::default() })
            .collect();
        budget
    }

    #[test]
    fn output_is_clamped_to_what_is_left_and_refusals_name_the_dimension() {
        let open = Limit { requests: 10, ..Limit::default() };
        let half = Amount { requests: 1, input_tokens: 60, output_tokens: 40, cost_micros: 100 };
        type Row = (&'static str, Limit, Spent, Vec<Amount>, Ask, Result<(i64, i64), &'static str>);
        let rows: Vec<Row> = vec![
            ("unlimited", open, Spent::default(), vec![], ASK, Ok((50, 200))),
            ("last request", open, Spent { requests: 9, ..Spent::default() }, vec![], ASK, Ok((50, 200))),
            ("no request left", open, Spent { requests: 10, ..Spent::default() }, vec![], ASK, Err("the budget's requests are spent")),
            (
                "held requests count as spent",
                Limit { requests: 1, ..open },
                Spent::default(),
                vec![half],
                ASK,
                Err("the budget's requests are spent"),
            ),
            (
                "a retry asks for no request",
                Limit { requests: 1, ..open },
                Spent { requests: 1, ..Spent::default() },
                vec![],
                Ask { requests: 0, ..ASK },
                Ok((50, 200)),
            ),
            ("input fits exactly", Limit { input_tokens: Some(100), ..open }, Spent::default(), vec![], ASK, Ok((50, 200))),
            (
                "input too large",
                Limit { input_tokens: Some(99), ..open },
                Spent::default(),
                vec![],
                ASK,
                Err("the budget's input tokens are spent"),
            ),
            (
                "input held",
                Limit { input_tokens: Some(120), ..open },
                Spent::default(),
                vec![half],
                ASK,
                Err("the rest of the budget's input tokens is reserved by calls in flight"),
            ),
            ("output clamped", Limit { output_tokens: Some(30), ..open }, Spent::default(), vec![], ASK, Ok((30, 160))),
            ("output clamped by held", Limit { output_tokens: Some(60), ..open }, Spent::default(), vec![half], ASK, Ok((20, 140))),
            (
                "output too small",
                Limit { output_tokens: Some(15), ..open },
                Spent::default(),
                vec![],
                ASK,
                Err("the budget's output tokens are spent"),
            ),
            (
                "small output asked",
                Limit { output_tokens: Some(3), ..open },
                Spent::default(),
                vec![],
                Ask { output_tokens: 2, ..ASK },
                Ok((2, 104)),
            ),
            (
                "output held",
                Limit { output_tokens: Some(50), ..open },
                Spent::default(),
                vec![half],
                ASK,
                Err("the rest of the budget's output tokens is reserved by calls in flight"),
            ),
            ("cost clamps output", Limit { cost_micros: Some(150), ..open }, Spent::default(), vec![], ASK, Ok((25, 150))),
            ("cost spent", Limit { cost_micros: Some(131), ..open }, Spent::default(), vec![], ASK, Err("the budget's cost are spent")),
            (
                "cost without a price",
                Limit { cost_micros: Some(500), ..open },
                Spent::default(),
                vec![],
                Ask { price: None, ..ASK },
                Err("the model has no price, and the run has a cost limit"),
            ),
            ("no price, no limit", open, Spent::default(), vec![], Ask { price: None, ..ASK }, Ok((50, 0))),
        ];
        for (name, limit, spent, held, ask, expected) in rows {
            let got =
                plan(&budget(limit, spent, &held), &ask).map(|g| (g.amount.output_tokens, g.amount.cost_micros)).map_err(|e| e.to_string());
            assert_eq!(got, expected.map_err(str::to_owned), "{name}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_granted_the_budget_admits(
            limits in (0i64..50, proptest::option::of(0i64..10_000), proptest::option::of(0i64..10_000), proptest::option::of(0i64..10_000)),
            spent in (0i64..50, 0i64..10_000, 0i64..10_000, 0i64..10_000),
            ask in (0i64..5_000, 1i64..5_000, 0i64..5_000_000, 0i64..5_000_000),
        ) {
            let limit = Limit { requests: limits.0, input_tokens: limits.1, output_tokens: limits.2, cost_micros: limits.3 };
            let spent = Spent { requests: spent.0, upstream_attempts: 0, input_tokens: spent.1, output_tokens: spent.2, cost_micros: spent.3 };
            let ask = Ask { requests: 1, input_tokens: ask.0, output_tokens: ask.1, price: Some(Price { input: ask.2, output: ask.3 }) };
            let mut budget = budget(limit, spent, &[]);
            if let Ok(granted) = plan(&budget, &ask) {
                prop_assert!(granted.amount.output_tokens >= 1 && granted.amount.output_tokens <= ask.output_tokens);
                let reservation = Reservation { id: "x".into(), holder: "h".into(), amount: granted.amount, ..Reservation::default() };
                prop_assert_eq!(budget.reserve(reservation), Ok(()));
            }
        }
    }
}
