//! The budget's promises hold for any sequence of calls with any amounts, however absurd.

use agentrun_crds::budget::{Amount, Budget, Gate, Limit, MAX_RESERVATIONS, Refusal, Reservation, Spent};
use proptest::prelude::*;

/// What may happen to a budget.
#[derive(Clone, Debug)]
enum Step {
    Reserve(u8, Amount),
    Settle(u8, Option<Amount>, i64),
    Close,
}

/// Small numbers meet each other and the limits; large and negative ones try the arithmetic.
fn number() -> impl Strategy<Value = i64> {
    prop_oneof![8 => 0..6i64, 1 => any::<i64>(), 1 => Just(i64::MAX), 1 => Just(-1i64)]
}

fn amount() -> impl Strategy<Value = Amount> {
    let make = |(requests, input_tokens, output_tokens, cost_micros)| Amount { requests, input_tokens, output_tokens, cost_micros };
    (number(), number(), number(), number()).prop_map(make)
}

fn limit() -> impl Strategy<Value = Limit> {
    let one = || proptest::option::of(0..40i64);
    (0..40i64, one(), one(), one()).prop_map(|(requests, input_tokens, output_tokens, cost_micros)| Limit {
        requests,
        input_tokens,
        output_tokens,
        cost_micros,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (0..48u8, amount()).prop_map(|(id, amount)| Step::Reserve(id, amount)),
        8 => (0..48u8, proptest::option::of(amount()), number()).prop_map(|(id, actual, attempts)| Step::Settle(id, actual, attempts)),
        1 => Just(Step::Close),
    ]
}

fn reservation(id: u8, amount: Amount) -> Reservation {
    Reservation { id: id.to_string(), holder: "gateway".into(), amount, ..Reservation::default() }
}

fn dimensions(spent: &Spent) -> [i64; 5] {
    [spent.requests, spent.upstream_attempts, spent.input_tokens, spent.output_tokens, spent.cost_micros]
}

/// What the CRD's rules demand of one state, and of a state after another.
fn check(before: &Budget, after: &Budget) {
    assert!(dimensions(&before.spent).iter().zip(dimensions(&after.spent)).all(|(was, is)| *was <= is), "spent fell: {before:?} {after:?}");
    assert_eq!(before.limit, after.limit);
    assert!(before.gate == Gate::Open || after.gate == Gate::Closed, "the gate opened again");
    assert!(after.gate != Gate::Closed || after.reservations.is_empty(), "open reservations behind a closed gate: {after:?}");
    assert!(after.overrun.is_none() || after.gate == Gate::Closed, "an overrun leaves the gate open: {after:?}");
    assert!(after.reservations.len() <= MAX_RESERVATIONS);
    let (spent, held) = (&after.spent, after.reserved());
    for (limit, spent, held) in [
        (Some(after.limit.requests), spent.requests, held.requests),
        (after.limit.input_tokens, spent.input_tokens, held.input_tokens),
        (after.limit.output_tokens, spent.output_tokens, held.output_tokens),
        (after.limit.cost_micros, spent.cost_micros, held.cost_micros),
    ] {
        assert!(spent >= 0 && held >= 0);
        let within = limit.is_none_or(|limit| spent.checked_add(held).is_some_and(|total| total <= limit));
        assert!(within || after.overrun.is_some(), "beyond the limit without an overrun: {after:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn promises_hold_after_every_step(limit in limit(), steps in proptest::collection::vec(step(), 1..80)) {
        let mut budget = Budget::new(limit);
        for step in steps {
            let before = budget.clone();
            match step {
                Step::Reserve(id, amount) => {
                    let held = before.reservations.iter().any(|open| open.id == id.to_string());
                    match budget.reserve(reservation(id, amount)) {
                        Ok(()) if held => assert_eq!(before, budget, "a repeated reservation changes nothing"),
                        Ok(()) => assert_eq!(before.reservations.len() + 1, budget.reservations.len()),
                        Err(refusal) => {
                            assert_eq!(before, budget, "a refusal changes nothing");
                            assert_eq!(refusal == Refusal::Closed, before.gate == Gate::Closed);
                        }
                    }
                }
                Step::Settle(id, actual, attempts) => {
                    let changed = budget.settle(&id.to_string(), actual, attempts);
                    assert_eq!(changed, before != budget, "settle says whether it changed anything");
                    let once = budget.clone();
                    assert!(!budget.settle(&id.to_string(), actual, attempts), "a repeated settlement is a no-op");
                    assert_eq!(once, budget);
                }
                Step::Close => {
                    budget.close();
                    let once = budget.clone();
                    budget.close();
                    assert_eq!(once, budget, "closing twice is closing once");
                }
            }
            check(&before, &budget);
        }
        let before = budget.clone();
        budget.close();
        check(&before, &budget);
        assert_eq!(budget.reserve(reservation(99, Amount::default())), Err(Refusal::Closed));
    }

    /// An unknown outcome, and an open call at the close, cost what was reserved.
    #[test]
    fn an_unknown_outcome_costs_its_reservation(amount in amount(), closed in any::<bool>()) {
        let mut budget = Budget::new(Limit { requests: i64::MAX, ..Limit::default() });
        if budget.reserve(reservation(0, amount)).is_ok() {
            if closed { budget.close() } else { assert!(budget.settle("0", None, 1)) }
            let spent = Spent {
                requests: amount.requests,
                upstream_attempts: if closed && amount == Amount::default() { 0 } else { amount.requests.max(1) },
                input_tokens: amount.input_tokens,
                output_tokens: amount.output_tokens,
                cost_micros: amount.cost_micros,
            };
            assert_eq!(budget.spent, spent);
            assert_eq!(budget.overrun, None);
        }
    }

    /// However many ask at once, no more than the limit get through.
    #[test]
    fn exactly_the_limit_is_admitted(limit in 0..30i64, askers in 1..40u8) {
        let mut budget = Budget::new(Limit { requests: limit, ..Limit::default() });
        let one = Amount { requests: 1, ..Amount::default() };
        let admitted = (0..askers).filter(|id| budget.reserve(reservation(*id, one)).is_ok()).count();
        assert_eq!(admitted as i64, limit.min(i64::from(askers)));
    }
}
