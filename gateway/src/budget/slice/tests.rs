//! Random interleavings of processes that lease slices of one budget, with conflicts, lost answers, writes that fail late,
//! crashes and closings. The referee is what the calls took.

use agentrun_crds::budget::Spent;
use proptest::prelude::*;

use super::*;
use crate::budget::Price;

/// Interleavings; AGENTRUN_INTERLEAVINGS sets another number.
fn cases() -> u32 {
    std::env::var("AGENTRUN_INTERLEAVINGS").ok().and_then(|text| text.parse().ok()).unwrap_or(10_000)
}

const PROCESSES: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Ask {
        process: usize,
        input: i64,
        output: i64,
    },
    /// The call at this place ends; `None`: unknown outcome, else what it took in hundredths of its reservation.
    Settle {
        process: usize,
        call: usize,
        took: Option<i64>,
    },
    Begin {
        process: usize,
        exclusive: bool,
        grow: bool,
    },
    Decide {
        process: usize,
        fate: Fate,
    },
    Finish {
        process: usize,
    },
    /// It dies with what it has in flight; somebody charges what it leaves, sooner or later.
    Crash {
        process: usize,
    },
    Sweep,
    Close {
        gently: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Written,
    /// Written, but the process is told that it failed.
    AnswerLost,
    NotWritten,
    /// Somebody else was faster: decided, but not written, and to be decided again.
    Conflict,
}

fn step() -> impl Strategy<Value = Step> {
    let process = 0..PROCESSES;
    prop_oneof![
        8 => (process.clone(), 1..40i64, 1..40i64).prop_map(|(process, input, output)| Step::Ask { process, input, output }),
        8 => (process.clone(), any::<usize>(), proptest::option::of(0..=100i64)).prop_map(|(process, call, took)| Step::Settle { process, call, took }),
        8 => (process.clone(), any::<bool>(), any::<bool>()).prop_map(|(process, exclusive, grow)| Step::Begin { process, exclusive, grow }),
        10 => (process.clone(), prop_oneof![5 => Just(Fate::Written), 1 => Just(Fate::AnswerLost), 1 => Just(Fate::NotWritten), 1 => Just(Fate::Conflict)])
            .prop_map(|(process, fate)| Step::Decide { process, fate }),
        8 => process.clone().prop_map(|process| Step::Finish { process }),
        1 => process.prop_map(|process| Step::Crash { process }),
        1 => Just(Step::Sweep),
        1 => any::<bool>().prop_map(|gently| Step::Close { gently }),
    ]
}

/// A renewal under way.
struct Writing {
    view: View,
    doubtful: Vec<Slice>,
    asks: Vec<(String, Ask)>,
    grow: bool,
    /// Decided, and what became of it.
    outcome: Option<(Renewed, Fate)>,
}

#[derive(Default)]
struct Process {
    lease: Lease,
    waiting: Vec<(String, Ask)>,
    calls: Vec<(String, Amount)>,
    writing: Option<Writing>,
}

struct World {
    budget: Budget,
    processes: Vec<Process>,
    /// Of crashed ones.
    dead: Vec<String>,
    lives: Vec<usize>,
    ids: usize,
    /// What the provider has billed, for sure or at worst.
    billed: Amount,
    /// Nobody died and nothing was closed over a slice: then what is spent is exact.
    exact: bool,
}

impl World {
    fn new(limit: Limit) -> Self {
        World {
            budget: Budget::new(limit),
            processes: (0..PROCESSES).map(|_| Process::default()).collect(),
            dead: Vec::new(),
            lives: vec![0; PROCESSES],
            ids: 0,
            billed: Amount::default(),
            exact: true,
        }
    }

    fn id(&mut self) -> String {
        self.ids += 1;
        self.ids.to_string()
    }

    fn holder(&self, process: usize) -> String {
        format!("{process}/{}", self.lives[process])
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Ask { process, input, output } => {
                let id = self.id();
                let ask =
                    Ask { requests: 1, input_tokens: input, output_tokens: output, price: Some(Price { input: 300_000, output: 700_000 }) };
                let this = &mut self.processes[process];
                match this.lease.admit(&id, &ask) {
                    Some(granted) => this.calls.push((id, granted.amount)),
                    None => this.waiting.push((id, ask)),
                }
            }
            Step::Settle { process, call, took } => {
                let this = &mut self.processes[process];
                if this.calls.is_empty() {
                    return;
                }
                let (id, held) = this.calls.remove(call % this.calls.len());
                let part = |number: i64, took: i64| number * took / 100;
                let amount = took.map(|took| Amount {
                    requests: held.requests,
                    input_tokens: part(held.input_tokens, took),
                    output_tokens: part(held.output_tokens, took),
                    cost_micros: part(held.cost_micros, took),
                });
                self.billed = self.billed.saturating_add(amount.unwrap_or(held));
                let charge = amount.map_or(Charge::Full { attempts: 1 }, |amount| Charge::Actual { amount, attempts: 1 });
                this.lease.settle(&id, charge);
            }
            Step::Begin { process, exclusive, grow } => {
                let this = &mut self.processes[process];
                if this.writing.is_none() {
                    let asks = std::mem::take(&mut this.waiting);
                    let view = this.lease.begin(exclusive || !asks.is_empty());
                    this.writing = Some(Writing { doubtful: view.doubtful(), view, asks, grow, outcome: None });
                }
            }
            Step::Decide { process, fate } => {
                let (id, holder) = (self.id(), self.holder(process));
                let Some(writing) = &mut self.processes[process].writing else { return };
                if writing.outcome.is_some() {
                    return;
                }
                let asks: Vec<(Ask, bool)> = writing.asks.iter().map(|(_, ask)| (*ask, true)).collect();
                let mut budget = self.budget.clone();
                let how = Renewal { holder: &holder, id, now: 0, grow: writing.grow, ahead: 2, call_in: true, rest: false };
                let renewed = writing.view.renew(&mut writing.doubtful, &mut budget, &asks, &how);
                if matches!(fate, Fate::Written | Fate::AnswerLost) {
                    self.budget = budget;
                }
                // A lost answer is found out by deciding again, or it is given up.
                writing.outcome = (fate != Fate::Conflict).then_some((renewed, fate));
            }
            Step::Finish { process } => {
                let this = &mut self.processes[process];
                let Some(Writing { outcome: Some((renewed, fate)), doubtful, asks, .. }) =
                    this.writing.take_if(|writing| writing.outcome.is_some())
                else {
                    return;
                };
                if fate == Fate::Written {
                    let ids: Vec<String> = asks.iter().map(|(id, _)| id.clone()).collect();
                    self.exact &= !renewed.lost || this.calls.is_empty();
                    this.lease.written(&renewed, &ids);
                    for (id, answer) in ids.into_iter().zip(&renewed.answers) {
                        if let Ok(granted) = answer {
                            this.calls.push((id, granted.amount));
                        }
                    }
                } else {
                    this.lease.in_doubt(doubtful);
                }
            }
            Step::Crash { process } => {
                let holder = self.holder(process);
                self.dead.push(holder);
                self.lives[process] += 1;
                let gone = std::mem::take(&mut self.processes[process]);
                for (_, held) in gone.calls {
                    self.billed = self.billed.saturating_add(held);
                }
                self.exact = false;
            }
            Step::Sweep => {
                let orphans = self.budget.reservations.iter().filter(|r| self.dead.contains(&r.holder)).map(|r| r.id.clone());
                for id in orphans.collect::<Vec<_>>() {
                    self.budget.settle(&id, None, 1);
                }
            }
            Step::Close { gently } => {
                if gently {
                    if self.budget.gate == Gate::Open {
                        self.budget.gate = Gate::Closing;
                    }
                } else {
                    self.exact &= self.budget.reservations.is_empty();
                    self.budget.close();
                }
            }
        }
        self.check();
    }

    fn check(&self) {
        let (spent, held, limit) = (self.budget.spent, self.budget.reserved(), self.budget.limit);
        assert_eq!(self.budget.overrun, None);
        for (limit, spent, held) in [
            (Some(limit.requests), spent.requests, held.requests),
            (limit.input_tokens, spent.input_tokens, held.input_tokens),
            (limit.output_tokens, spent.output_tokens, held.output_tokens),
            (limit.cost_micros, spent.cost_micros, held.cost_micros),
        ] {
            assert!(limit.is_none_or(|limit| spent + held <= limit), "beyond the limit: {:?}", self.budget);
        }
        let booked = amount(spent).saturating_add(held);
        let at_most =
            self.processes.iter().flat_map(|process| &process.calls).fold(self.billed, |sum, (_, held)| sum.saturating_add(*held));
        assert!(at_most.fits(booked), "billed {at_most:?} but booked {booked:?}: {:?}", self.budget);
        assert!(self.budget.reservations.len() <= MAX_RESERVATIONS);
    }

    /// Everything ends well.
    fn end(mut self) {
        for process in 0..PROCESSES {
            while !self.processes[process].calls.is_empty() {
                self.take(Step::Settle { process, call: 0, took: Some(50) });
            }
            for _ in 0..2 {
                self.processes[process].waiting.clear();
                self.take(Step::Decide { process, fate: Fate::Written });
                self.take(Step::Finish { process });
                while !self.processes[process].calls.is_empty() {
                    self.take(Step::Settle { process, call: 0, took: Some(50) });
                }
                self.take(Step::Begin { process, exclusive: true, grow: false });
                self.take(Step::Decide { process, fate: Fate::Written });
                self.take(Step::Finish { process });
            }
            assert!(self.processes[process].lease.is_empty(), "{:?}", self.processes[process].lease);
        }
        self.take(Step::Sweep);
        assert_eq!(self.budget.reserved(), Amount::default(), "nothing is left behind: {:?}", self.budget);
        assert!(self.billed.fits(amount(self.budget.spent)), "spent {:?}, billed {:?}", self.budget.spent, self.billed);
        if self.exact {
            assert_eq!(amount(self.budget.spent), self.billed, "a normal end is exact");
        }
    }
}

fn amount(spent: Spent) -> Amount {
    Amount {
        requests: spent.requests,
        input_tokens: spent.input_tokens,
        output_tokens: spent.output_tokens,
        cost_micros: spent.cost_micros,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn no_interleaving_spends_more_than_the_limit_or_books_less_than_was_billed(
        requests in prop_oneof![0..20i64, 100..400i64],
        tokens in proptest::option::of(0..20_000i64),
        cost in proptest::option::of(0..20_000i64),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut world = World::new(Limit { requests, input_tokens: tokens, output_tokens: tokens, cost_micros: cost });
        for step in steps {
            world.take(step);
        }
        world.end();
    }
}

#[test]
fn most_calls_of_a_large_budget_take_no_write() {
    let mut budget = Budget::new(Limit { requests: 100_000, ..Limit::default() });
    let mut lease = Lease::default();
    let ask = Ask { requests: 1, input_tokens: 1000, output_tokens: 64, price: None };
    let mut writes = 0;
    for call in 0..10_000 {
        let id = format!("call-{call}");
        if lease.admit(&id, &ask).is_none() {
            writes += 1;
            let view = lease.begin(true);
            let how = Renewal { holder: "a", id: format!("slice-{writes}"), now: 0, grow: true, ahead: 2, call_in: true, rest: false };
            let renewed = view.renew(&mut view.doubtful(), &mut budget, &[(ask, true)], &how);
            lease.written(&renewed, std::slice::from_ref(&id));
        }
        lease.settle(
            &id,
            Charge::Actual { amount: Amount { requests: 1, input_tokens: 10, output_tokens: 5, cost_micros: 0 }, attempts: 1 },
        );
    }
    assert!(writes <= 20, "{writes} writes");
}

#[test]
fn near_the_limit_nothing_is_taken_in_advance_and_a_request_calls_in_what_others_hold() {
    let renew = |lease: &mut Lease, budget: &mut Budget, holder: &str, id: &str, asks: &[(Ask, bool)]| {
        let view = lease.begin(true);
        let how = Renewal { holder, id: id.into(), now: 0, grow: true, ahead: 2, call_in: true, rest: false };
        let renewed = view.renew(&mut view.doubtful(), budget, asks, &how);
        let ids: Vec<String> = (0..asks.len()).map(|n| format!("{id}-{n}")).collect();
        lease.written(&renewed, &ids);
        renewed
    };
    let ask = (Ask { requests: 1, input_tokens: 1, output_tokens: 1, price: None }, true);
    let mut budget = Budget::new(Limit { requests: 100, ..Limit::default() });
    let (mut a, mut b) = (Lease::default(), Lease::default());
    assert!(renew(&mut a, &mut budget, "a", "a1", &[ask]).answers[0].is_ok());
    assert_eq!((budget.reserved().requests, budget.has_slices()), (9, true), "one in use and eight in advance");
    // The other takes what is left, then wants one more.
    let renewed = renew(&mut b, &mut budget, "b", "b1", &[ask; 92]);
    assert_eq!(renewed.answers.iter().filter(|answer| answer.is_ok()).count(), 91);
    assert!(matches!(renewed.answers[91], Err(NotAdmitted::Contended(_))) && renewed.starved, "{renewed:?}");
    assert!(budget.reservations.iter().any(|r| r.is_request() && r.holder == "b"));
    // The first sees it and gives back what no call holds.
    renew(&mut a, &mut budget, "a", "a2", &[]);
    assert_eq!((a.has_slack(), budget.has_slices()), (false, false));
    let renewed = renew(&mut b, &mut budget, "b", "b2", &[ask]);
    assert!(renewed.answers[0].is_ok() && !renewed.starved);
    assert!(!budget.reservations.iter().any(Reservation::is_request), "the request is withdrawn: {budget:?}");
    let renewed = renew(&mut b, &mut budget, "b", "b3", &[ask; 8]);
    assert!(matches!(renewed.answers[7], Err(NotAdmitted::Exhausted(_))), "what calls hold is as good as spent: {renewed:?}");
}

#[test]
fn a_status_from_an_older_backup_is_raised_before_anything_is_admitted() {
    let ask = Ask { requests: 1, input_tokens: 10, output_tokens: 5, price: None };
    for (limit, in_flight, expected) in [(1000, false, 12), (1000, true, 13), (13, true, 13)] {
        let mut budget = Budget::new(Limit { requests: limit, ..Limit::default() });
        let backup = budget.clone();
        let mut lease = Lease::default();
        let renew = |lease: &mut Lease, budget: &mut Budget, id: String, asks: &[(Ask, bool)]| {
            let view = lease.begin(true);
            let how = Renewal { holder: "a", id: id.clone(), now: 0, grow: true, ahead: 2, call_in: true, rest: false };
            let renewed = view.renew(&mut view.doubtful(), budget, asks, &how);
            lease.written(&renewed, std::slice::from_ref(&id));
            renewed
        };
        for call in 0..12 {
            let id = call.to_string();
            if lease.admit(&id, &ask).is_none() {
                assert!(renew(&mut lease, &mut budget, id.clone(), &[(ask, true)]).answers[0].is_ok());
            }
            assert!(lease.settle(&id, Charge::Full { attempts: 1 }).is_some());
        }
        if in_flight && lease.admit("open", &ask).is_none() {
            assert!(renew(&mut lease, &mut budget, "open".into(), &[(ask, true)]).answers[0].is_ok());
        }
        budget = backup;
        let renewed = renew(&mut lease, &mut budget, "after".into(), &[(ask, true)]);
        assert!(renewed.restored);
        assert_eq!(budget.spent.requests, expected, "limit {limit}, in flight {in_flight}");
        assert_eq!(renewed.answers[0].is_ok(), limit == 1000, "what was spent is not there to be spent again");
    }
}
