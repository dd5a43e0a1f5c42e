//! The arithmetic of a leased slice. A slice is a reservation in a status from which this process admits calls in
//! memory; it is renewed by replacing it, in one compare-and-swap, by another under a new id, so that whether a write whose
//! answer was lost took place shows in the status itself. Pure: no clock, no IO.
//!
//! In every dimension and at every moment: settled since the slice was written + held by calls in flight <= the slice.

use std::collections::HashMap;

use agentrun_crds::budget::{Amount, Budget, Gate, Limit, MAX_RESERVATIONS, Reservation, Spent};

use super::{Ask, Charge, Granted, NotAdmitted, plan};

/// A slice is at most this part of what is left.
const SHARE: i128 = 8;
/// A slice for fewer calls than this is not worth having: near the limit each call is its own compare-and-swap.
const LEAST_CALLS: i64 = 4;
const FIRST_CALLS: i64 = 8;
const MOST_CALLS: i64 = 8192;

/// What was settled so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub amount: Amount,
    pub attempts: i64,
    /// Taken beyond the calls' own reservations.
    pub excess: Amount,
}

impl Tally {
    fn since(self, base: Tally) -> Tally {
        Tally {
            amount: self.amount.saturating_sub(base.amount),
            attempts: self.attempts.saturating_sub(base.attempts).max(0),
            excess: self.excess.saturating_sub(base.excess),
        }
    }
}

/// A reservation of ours as it stands, or may stand, in status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    pub id: String,
    pub amount: Amount,
    /// What had been settled, and written, when it was taken.
    base: Tally,
}

/// What this process has of one budget, as far as a renewal needs it.
#[derive(Clone, Debug, Default)]
pub struct View {
    total: Tally,
    held: Amount,
    slice: Option<Slice>,
    /// Slices of writes whose outcome is not known; at most one of these and `slice` is in status.
    doubtful: Vec<Slice>,
    /// Nothing is admitted in memory, since a write that may shrink the slice is under way.
    exclusive: bool,
    /// About the largest of the recent asks.
    typical: Amount,
    /// Calls admitted since the last renewal.
    recent: i64,
    /// The limits, as last seen.
    limit: Limit,
    /// The slice was taken with room to spare.
    roomy: bool,
    /// What was spent at our last write; it cannot be less.
    known: Spent,
    /// The same at the last write of any process.
    shared: Spent,
}

/// What this process has of one budget.
#[derive(Debug, Default)]
pub struct Lease {
    view: View,
    calls: HashMap<String, Amount>,
}

/// How to renew.
#[derive(Clone, Debug)]
pub struct Renewal<'a> {
    pub holder: &'a str,
    /// Id of the next slice; never used before.
    pub id: String,
    /// Unix seconds.
    pub now: i64,
    /// Take more than the calls need.
    pub grow: bool,
    /// For so many times the calls that came since the last renewal.
    pub ahead: i64,
    /// Ask other holders to give back what they hold in advance, if this would help.
    pub call_in: bool,
    /// Wait for others' slices even if no ask does.
    pub rest: bool,
    /// A provider that took more than was reserved closes the budget; else it is only charged.
    pub overrun_closes: bool,
}

/// What a renewal comes to if it is written.
#[derive(Debug)]
pub struct Renewed {
    pub answers: Vec<Result<Granted, NotAdmitted>>,
    /// Others hold slices that this renewal would have used, or that must come back first.
    pub starved: bool,
    slice: Option<Slice>,
    /// Somebody has charged our slice in full.
    pub lost: bool,
    roomy: bool,
    /// It could not take so much that another one would not be due at once.
    pub short: bool,
    limit: Limit,
    /// What is spent after it, or known to be.
    pub spent: Spent,
    /// The status said that less was spent than we know: the cluster's state is older than our ledger.
    pub restored: bool,
}

impl Renewed {
    /// Id and amount of the slice that this leaves us with.
    pub fn slice(&self) -> Option<(&str, Amount)> {
        self.slice.as_ref().map(|slice| (slice.id.as_str(), slice.amount))
    }
}

impl Lease {
    /// What an earlier life of this process, or of this entry, has left: what was spent then, and a slice with what calls took
    /// of it at most.
    pub fn recovered(known: Spent, slice: Option<(String, Amount, Amount, i64)>) -> Self {
        let mut view = View { known, ..View::default() };
        if let Some((id, amount, used, attempts)) = slice {
            view.slice = Some(Slice { id, amount, base: Tally::default() });
            view.total = Tally { amount: used.min(amount), attempts, excess: Amount::default() };
        }
        Lease { view, calls: HashMap::new() }
    }

    /// The account's limit, as last seen.
    pub fn limit(&self) -> Limit {
        self.view.limit
    }

    /// What was spent at our last write.
    pub fn known(&self) -> Spent {
        self.view.known
    }

    /// The slice, and what calls have taken of it at most (settled or in flight), with attempts.
    pub fn taken(&self) -> Option<(&str, Amount, i64)> {
        let View { total, held, slice, .. } = &self.view;
        let slice = slice.as_ref()?;
        let used = total.since(slice.base);
        let in_flight = i64::try_from(self.calls.len()).unwrap_or(i64::MAX);
        Some((&slice.id, used.amount.saturating_add(*held), used.attempts.saturating_add(in_flight)))
    }

    /// Admit a call from the slice; `None`: it takes a renewal. Nothing is clamped here.
    pub fn admit(&mut self, id: &str, ask: &Ask) -> Option<Granted> {
        let View { total, held, slice, exclusive, limit, .. } = &self.view;
        let slice = slice.as_ref().filter(|_| !exclusive)?;
        if ask.price.is_none() && limit.cost_micros.is_some() {
            return None;
        }
        let amount = Amount {
            requests: ask.requests,
            input_tokens: ask.input_tokens,
            output_tokens: ask.output_tokens,
            cost_micros: ask.price.map_or(0, |price| price.cost(ask.input_tokens, ask.output_tokens)),
        };
        let taken = total.since(slice.base).amount.saturating_add(*held).saturating_add(amount);
        if !taken.fits(slice.amount) {
            return None;
        }
        self.hold(id, amount);
        Some(Granted { amount })
    }

    fn hold(&mut self, id: &str, amount: Amount) {
        let view = &mut self.view;
        view.held = view.held.saturating_add(amount);
        view.recent = view.recent.saturating_add(1);
        view.typical = fading(view.typical).max(amount);
        self.calls.insert(id.to_owned(), amount);
    }

    /// Book what a call took: what is charged, and how far that is beyond its reservation. `None`: it was charged in full before.
    pub fn settle(&mut self, id: &str, charge: Charge) -> Option<(Amount, bool)> {
        let held = self.calls.remove(id)?;
        let view = &mut self.view;
        view.held = view.held.saturating_sub(held);
        let (actual, attempts) = match charge {
            Charge::Release => (Amount::default(), 0),
            Charge::Full { attempts } => (held, attempts),
            Charge::Actual { amount, attempts } => (amount.max(Amount::default()), attempts),
        };
        let excess = actual.saturating_sub(held);
        view.total = Tally {
            amount: view.total.amount.saturating_add(actual),
            attempts: view.total.attempts.saturating_add(attempts.max(0)),
            excess: view.total.excess.saturating_add(excess),
        };
        Some((actual, excess != Amount::default()))
    }

    /// Settled, but not written yet.
    pub fn unwritten(&self) -> Tally {
        self.view.unwritten()
    }

    /// Whether there is more in the slice than calls and unwritten settlements need.
    pub fn has_slack(&self) -> bool {
        let View { total, held, slice, .. } = &self.view;
        slice.as_ref().is_some_and(|slice| !slice.amount.fits(total.since(slice.base).amount.saturating_add(*held)))
    }

    /// Whether the slice was taken with room for more than the calls that asked: later settlements can wait for others.
    pub fn has_room(&self) -> bool {
        self.view.roomy
    }

    /// Whether less than a quarter of the slice is left in some dimension that calls use.
    pub fn runs_low(&self) -> bool {
        let View { total, held, slice, typical, .. } = &self.view;
        let Some(slice) = slice else { return false };
        is_low(slice.amount, total.since(slice.base).amount.saturating_add(*held), *typical)
    }

    /// Whether nothing is held, open or in doubt.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.view.slice.is_none() && self.view.doubtful.is_empty()
    }

    /// Calls in flight.
    pub fn in_flight(&self) -> usize {
        self.calls.len()
    }

    /// Whether a reservation in status may be ours.
    pub fn answers_for(&self, id: &str) -> bool {
        self.view.doubtful.iter().chain(&self.view.slice).any(|slice| slice.id == id)
    }

    /// Id of the slice, if there is no doubt about it.
    pub fn slice_id(&self) -> Option<&str> {
        self.view.slice.as_ref().filter(|_| self.view.doubtful.is_empty()).map(|slice| slice.id.as_str())
    }

    /// Begin a renewal. An exclusive one may shrink the slice, so that nothing is admitted in memory until it is written; so is
    /// each after a write in doubt, which may have shrunk it.
    pub fn begin(&mut self, exclusive: bool) -> View {
        self.view.exclusive = exclusive || !self.view.doubtful.is_empty();
        self.view.clone()
    }

    /// The renewal was written. Amounts granted are held from now on.
    pub fn written(&mut self, renewed: &Renewed, ids: &[String]) {
        if renewed.lost {
            self.calls.clear();
            self.view.held = Amount::default();
        }
        let total = self.view.total;
        let view = &mut self.view;
        view.exclusive = false;
        view.doubtful.clear();
        view.recent = 0;
        view.limit = renewed.limit;
        view.known = renewed.spent;
        view.roomy = renewed.roomy;
        // What lost calls still settle is charged already, and not to this slice.
        view.slice = renewed.slice.clone().map(|slice| if renewed.lost { Slice { base: total, ..slice } } else { slice });
        for (id, answer) in ids.iter().zip(&renewed.answers) {
            if let Ok(granted) = answer {
                self.hold(id, granted.amount);
            }
        }
    }

    /// The renewal failed; these slices may have been written.
    pub fn in_doubt(&mut self, doubtful: Vec<Slice>) {
        self.view.doubtful = doubtful;
    }
}

impl View {
    fn unwritten(&self) -> Tally {
        self.slice.as_ref().map(|slice| self.total.since(slice.base)).unwrap_or_default()
    }

    /// Take up what any process has written as spent: an older state of the cluster may not show it.
    pub fn share(&mut self, spent: Spent) {
        self.shared = spent;
    }

    /// Slices that may be in status whatever becomes of the next write.
    pub fn doubtful(&self) -> Vec<Slice> {
        self.doubtful.clone()
    }

    /// Decide on one version of the budget, which is changed to what is to be written. Called again after a conflict or a lost
    /// answer, with what may have been written in between in `doubtful`; the next slice is added to it.
    pub fn renew(&self, doubtful: &mut Vec<Slice>, budget: &mut Budget, asks: &[(Ask, bool)], how: &Renewal<'_>) -> Renewed {
        let before = budget.clone();
        let current = doubtful.iter().chain(&self.slice).find(|slice| before.reservations.iter().any(|r| r.id == slice.id)).cloned();
        let lost = current.is_none() && self.slice.is_some();
        let held = if lost { Amount::default() } else { self.held };
        let mut known = self.known;
        if let Some(slice) = self.slice.as_ref().filter(|_| lost) {
            // Whoever charged it charged it in full. If nobody has, an older state of the cluster came back.
            let used = self.total.since(slice.base);
            add(&mut known, used.amount.saturating_add(self.held), used.attempts.saturating_add(self.held.requests));
        }
        let restored = raise(budget, most(known, self.shared));
        let mut kept = held;
        let mut used = Tally::default();
        if let Some(current) = &current {
            used = self.total.since(current.base);
            // Calls of a slice that was lost unseen may have been settled meanwhile; they are not this slice's.
            used.amount = used.amount.min(current.amount.saturating_add(used.excess));
            budget.settle_many(&current.id, used.amount, used.attempts, used.excess);
            if how.overrun_closes && used.excess != Amount::default() {
                budget.close();
            }
            if !self.exclusive {
                kept = kept.max(current.amount.saturating_sub(used.amount));
            }
        }
        let request = format!("waiting/{}", how.holder);
        let waited_since = before.reservations.iter().find(|r| r.id == request).map_or(how.now, |r| r.since);
        budget.reservations.retain(|r| r.id != request);
        let others = budget.reservations.clone();
        let room = current.is_some() || others.len() < MAX_RESERVATIONS;
        let mut ours = Reservation { id: how.id.clone(), holder: how.holder.to_owned(), amount: kept, since: how.now, slice: false };
        let at =
            before.reservations.iter().position(|r| current.as_ref().is_some_and(|current| r.id == current.id)).unwrap_or(others.len());
        let at = at.min(others.len());
        let put = |budget: &mut Budget, ours: &Reservation| {
            budget.reservations.clone_from(&others);
            if !ours.is_request() && budget.gate != Gate::Closed {
                budget.reservations.insert(at, ours.clone());
            }
        };
        put(budget, &ours);
        let mut answers = Vec::with_capacity(asks.len());
        let mut typical = self.typical;
        for (ask, active) in asks {
            let answer = match plan(budget, ask) {
                _ if !active => Err(NotAdmitted::Inactive),
                Ok(_) if !room => Err(NotAdmitted::TooManyInFlight),
                answer => answer,
            };
            if let Ok(granted) = &answer {
                ours.amount = ours.amount.saturating_add(granted.amount);
                typical = fading(typical).max(granted.amount);
                put(budget, &ours);
            }
            answers.push(answer);
        }
        let foreign_slices = others.iter().any(|r| r.slice && r.holder != how.holder);
        let wanted = others.iter().any(|r| r.is_request() && r.holder != how.holder);
        let contended = answers.iter().any(|answer| matches!(answer, Err(NotAdmitted::Contended(_))));
        let starved = foreign_slices && (contended || how.rest) && budget.gate != Gate::Closed;
        if how.grow && !wanted && !starved && room && budget.gate == Gate::Open {
            let busy = self.recent.saturating_add(i64::try_from(answers.iter().filter(|a| a.is_ok()).count()).unwrap_or(0));
            let in_use = held.saturating_add(ours.amount.saturating_sub(kept));
            if let Some(slack) = slack(budget, ours.amount.saturating_sub(in_use), typical, busy.saturating_mul(how.ahead)) {
                ours.amount = ours.amount.max(in_use.saturating_add(slack));
            }
        }
        let in_use =
            held.saturating_add(answers.iter().flatten().fold(Amount::default(), |sum, granted| sum.saturating_add(granted.amount)));
        ours.slice = !ours.amount.fits(in_use);
        let short = is_low(ours.amount, in_use, typical);
        if let Some(current) = &current
            && let Some(standing) = before.reservations.iter().find(|r| r.id == current.id)
            && used == Tally::default()
            && standing.amount == ours.amount
            && standing.slice == ours.slice
        {
            // Nothing moved: no write for its own sake.
            ours = standing.clone();
        }
        put(budget, &ours);
        if starved && how.call_in && budget.reservations.len() < MAX_RESERVATIONS {
            let request = Reservation { id: request, holder: how.holder.to_owned(), since: waited_since, ..Reservation::default() };
            budget.reservations.push(request);
        }
        let slice =
            budget.reservations.iter().find(|r| r.id == ours.id).map(|r| Slice { id: r.id.clone(), amount: r.amount, base: self.total });
        let slice = match (slice, current) {
            (Some(slice), Some(current)) if slice.id == current.id => Some(current),
            (slice, _) => slice,
        };
        doubtful.extend(slice.clone().filter(|slice| !doubtful.contains(slice)));
        let (roomy, limit, spent) = (ours.slice, budget.limit, most(budget.spent, self.known));
        Renewed { answers, starved, slice, lost, roomy, short, limit, spent, restored }
    }
}

fn add(spent: &mut Spent, amount: Amount, attempts: i64) {
    spent.requests = spent.requests.saturating_add(amount.requests);
    spent.upstream_attempts = spent.upstream_attempts.saturating_add(attempts);
    spent.input_tokens = spent.input_tokens.saturating_add(amount.input_tokens);
    spent.output_tokens = spent.output_tokens.saturating_add(amount.output_tokens);
    spent.cost_micros = spent.cost_micros.saturating_add(amount.cost_micros);
}

fn most(one: Spent, other: Spent) -> Spent {
    Spent {
        requests: one.requests.max(other.requests),
        upstream_attempts: one.upstream_attempts.max(other.upstream_attempts),
        input_tokens: one.input_tokens.max(other.input_tokens),
        output_tokens: one.output_tokens.max(other.output_tokens),
        cost_micros: one.cost_micros.max(other.cost_micros),
    }
}

/// Have the budget say at least what is known to be spent, as far as the limit and what is reserved admit. Whether it said less.
fn raise(budget: &mut Budget, known: Spent) -> bool {
    if budget.gate == Gate::Closed {
        return false;
    }
    let (before, held, limit) = (budget.spent, budget.reserved(), budget.limit);
    let spent = &mut budget.spent;
    for (spent, known, limit, held) in [
        (&mut spent.requests, known.requests, Some(limit.requests), held.requests),
        (&mut spent.input_tokens, known.input_tokens, limit.input_tokens, held.input_tokens),
        (&mut spent.output_tokens, known.output_tokens, limit.output_tokens, held.output_tokens),
        (&mut spent.cost_micros, known.cost_micros, limit.cost_micros, held.cost_micros),
    ] {
        let most = limit.map_or(i64::MAX, |limit| limit.saturating_sub(held));
        *spent = (*spent).max(known.min(most));
    }
    spent.upstream_attempts = spent.upstream_attempts.max(known.upstream_attempts);
    *spent != before
}

/// What to take beyond what calls need: for so many calls as will come until the next write, within a share of what is left.
/// `free` is what of our own reservation is not in use.
fn slack(budget: &Budget, free: Amount, typical: Amount, expected: i64) -> Option<Amount> {
    let typical = Amount { requests: typical.requests.max(1), ..typical };
    let Limit { requests, input_tokens, output_tokens, cost_micros } = budget.limit;
    let limits = [Some(requests), input_tokens, output_tokens, cost_micros];
    let spent = [budget.spent.requests, budget.spent.input_tokens, budget.spent.output_tokens, budget.spent.cost_micros];
    let mut calls = expected.clamp(FIRST_CALLS, MOST_CALLS);
    let reserved = dimensions(budget.reserved());
    for (((limit, spent), (reserved, free)), each) in
        limits.into_iter().zip(spent).zip(reserved.into_iter().zip(dimensions(free))).zip(dimensions(typical))
    {
        if let Some(limit) = limit.filter(|_| each > 0) {
            let left = i128::from(limit) - i128::from(spent) - i128::from(reserved) + i128::from(free);
            calls = calls.min(i64::try_from((left / SHARE).max(0) / i128::from(each)).unwrap_or(MOST_CALLS));
        }
    }
    (calls >= LEAST_CALLS).then(|| typical.saturating_mul(calls))
}

/// Whether less than a quarter is left in some dimension that calls use.
fn is_low(all: Amount, taken: Amount, typical: Amount) -> bool {
    let left = dimensions(all.saturating_sub(taken));
    left.into_iter().zip(dimensions(all)).zip(dimensions(typical)).any(|((left, all), used)| used > 0 && left < all / 4)
}

fn fading(typical: Amount) -> Amount {
    let faded = |number: i64| number - number / 4;
    Amount {
        requests: faded(typical.requests),
        input_tokens: faded(typical.input_tokens),
        output_tokens: faded(typical.output_tokens),
        cost_micros: faded(typical.cost_micros),
    }
}

fn dimensions(amount: Amount) -> [i64; 4] {
    [amount.requests, amount.input_tokens, amount.output_tokens, amount.cost_micros]
}

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;
