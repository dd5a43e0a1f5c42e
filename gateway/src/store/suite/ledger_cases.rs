//! Promises of a budget ledger.

use agentrun_crds::budget::{Amount, Spent};

use super::Subject;
use crate::store::{BudgetLedger, Quotas, Taken, TakenSlice};

fn amount(n: i64) -> Amount {
    Amount { requests: n, input_tokens: 10 * n, output_tokens: 20 * n, cost_micros: 30 * n }
}

fn spent(n: i64) -> Spent {
    Spent { requests: n, upstream_attempts: 2 * n, input_tokens: 10 * n, output_tokens: 20 * n, cost_micros: 30 * n }
}

fn slice(id: &str, n: i64) -> TakenSlice {
    TakenSlice { id: id.into(), amount: amount(n), used: None }
}

async fn taken(ledger: &dyn BudgetLedger) -> Vec<(String, Taken)> {
    let mut taken = ledger.taken().await.expect("taken");
    taken.sort_by(|a, b| a.0.cmp(&b.0));
    taken
}

pub async fn what_is_taken_replaces_what_was_until_it_is_forgotten(make: &dyn Fn(Quotas) -> Subject) {
    let subject = make(Quotas::default());
    let ledger = &*subject.ledger;
    assert_eq!(ledger.spent("a").await, Ok(Spent::default()), "nothing is known");
    ledger.take("a", Taken { spent: spent(1), slice: Some(slice("first", 8)) }).await.expect("taken");
    ledger.take("a", Taken { spent: spent(3), slice: Some(slice("second", 4)) }).await.expect("taken");
    ledger.take("b", Taken { spent: spent(2), slice: Some(slice("b", 4)) }).await.expect("taken");
    ledger.take("b", Taken { spent: spent(5), slice: None }).await.expect("given back");
    ledger.take("c", Taken { spent: spent(1), slice: Some(slice("c", 4)) }).await.expect("taken");
    assert_eq!((ledger.spent("a").await, ledger.spent("b").await), (Ok(spent(3)), Ok(spent(5))));
    for _ in 0..2 {
        ledger.forget("c").await.expect("forgotten");
    }
    let a = Taken { spent: spent(3), slice: Some(slice("second", 4)) };
    assert_eq!(taken(ledger).await, [("a".into(), a), ("b".into(), Taken { spent: spent(5), slice: None })]);
}

pub async fn notes_are_of_their_slice(make: &dyn Fn(Quotas) -> Subject) {
    let subject = make(Quotas::default());
    let ledger = &*subject.ledger;
    ledger.note("a", "first", amount(1), 1);
    ledger.take("a", Taken { spent: spent(1), slice: Some(slice("second", 8)) }).await.expect("taken");
    // A note is for the next life of this process; this one knows what its calls use.
    assert_eq!(taken(ledger).await, [("a".into(), Taken { spent: spent(1), slice: Some(slice("second", 8)) })]);
}
