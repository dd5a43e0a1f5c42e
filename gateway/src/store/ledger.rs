//! What this gateway has taken of runs' and namespaces' budgets, on disk: so that a restart loses no charge, and that a cluster whose state was
//! restored from an older backup does not have its budgets spent a second time.

use agentrun_crds::budget::{Amount, Spent};

use super::Answer;

/// What is known of one budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Its `spent` as it was last written. It cannot be less.
    pub spent: Spent,
    /// What we hold beyond it.
    pub slice: Option<TakenSlice>,
}

/// A reservation of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenSlice {
    pub id: String,
    pub amount: Amount,
    /// What calls had taken of it at most (settled or in flight) and attempts, where that is known for sure.
    pub used: Option<(Amount, i64)>,
}

/// Where it is kept.
pub trait BudgetLedger: Send + Sync + 'static {
    /// Replace what is known of a budget, by a run's UID or a period's key. Durable before it answers; `used` is not kept.
    fn take(&self, key: &str, taken: Taken) -> Answer<'_, ()>;

    /// Note what calls have taken of a slice at most. Cheap; survives the process but need not survive the machine.
    fn note(&self, key: &str, slice: &str, used: Amount, attempts: i64);

    /// What of a budget was spent, as any gateway has last written it: it cannot be less.
    fn spent(&self, key: &str) -> Answer<'_, Spent>;

    /// Everything that is known, with the slices of this gateway only.
    fn taken(&self) -> Answer<'_, Vec<(String, Taken)>>;

    /// Drop what is known of a budget.
    fn forget(&self, key: &str) -> Answer<'_, ()>;
}
