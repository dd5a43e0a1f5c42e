//! Random interleavings of processes that lease slices of the budgets of two runs and of their namespace, with conflicts, lost
//! answers, writes that fail late, crashes, closings, ends of periods and changed limits. The referee is what the calls took.

use std::collections::HashMap;

use agentrun_crds::budget::Spent;
use proptest::prelude::*;

use super::*;
use crate::budget::Price;

/// Interleavings; AGENTRUN_INTERLEAVINGS sets another number.
fn cases() -> u32 {
    std::env::var("AGENTRUN_INTERLEAVINGS").ok().and_then(|text| text.parse().ok()).unwrap_or(10_000)
}

const PROCESSES: usize = 3;
const RUNS: usize = 2;

#[derive(Clone, Debug)]
enum Step {
    Ask {
        process: usize,
        run: usize,
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
        at: At,
        exclusive: bool,
        grow: bool,
    },
    Decide {
        at: At,
        fate: Fate,
    },
    Finish {
        at: At,
    },
    /// It dies with what it has in flight; somebody charges what it leaves, sooner or later.
    Crash {
        process: usize,
    },
    Sweep,
    /// A run ends.
    Close {
        run: usize,
        gently: bool,
    },
    /// The namespace's next period begins.
    NextPeriod,
    /// The namespace's limit becomes so many hundredths of what it was at first.
    Limit {
        part: i64,
    },
}

/// A process and one of the accounts; the number is taken modulo how many there are.
#[derive(Clone, Copy, Debug)]
struct At {
    process: usize,
    account: usize,
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
    let at = (process.clone(), 0..RUNS + 2).prop_map(|(process, account)| At { process, account });
    let fate = prop_oneof![5 => Just(Fate::Written), 1 => Just(Fate::AnswerLost), 1 => Just(Fate::NotWritten), 1 => Just(Fate::Conflict)];
    prop_oneof![
        8 => (process.clone(), 0..RUNS, 1..40i64, 1..40i64).prop_map(|(process, run, input, output)| Step::Ask { process, run, input, output }),
        8 => (process.clone(), any::<usize>(), proptest::option::of(0..=100i64)).prop_map(|(process, call, took)| Step::Settle { process, call, took }),
        10 => (at.clone(), any::<bool>(), any::<bool>()).prop_map(|(at, exclusive, grow)| Step::Begin { at, exclusive, grow }),
        12 => (at.clone(), fate).prop_map(|(at, fate)| Step::Decide { at, fate }),
        10 => at.prop_map(|at| Step::Finish { at }),
        1 => process.prop_map(|process| Step::Crash { process }),
        1 => Just(Step::Sweep),
        1 => (0..RUNS, any::<bool>()).prop_map(|(run, gently)| Step::Close { run, gently }),
        1 => Just(Step::NextPeriod),
        1 => (10..150i64).prop_map(|part| Step::Limit { part }),
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

/// What a process has of one account.
#[derive(Default)]
struct Own {
    lease: Lease,
    waiting: Vec<(String, Ask)>,
    writing: Option<Writing>,
}

/// A call with what holds it: its run's account first.
#[derive(Clone, Debug)]
struct Call {
    id: String,
    run: usize,
    ask: Ask,
    held: Vec<(usize, Amount)>,
}

impl Call {
    /// What may be sent: the last account grants no more than those before it.
    fn granted(&self) -> Amount {
        self.held.last().map(|(_, amount)| *amount).unwrap_or_default()
    }

    fn is_held_by(&self, account: usize) -> bool {
        self.held.iter().any(|(held_by, _)| *held_by == account)
    }
}

#[derive(Default)]
struct Process {
    own: HashMap<usize, Own>,
    /// Sent.
    calls: Vec<Call>,
    /// Held by some accounts, and waiting for the next.
    half: HashMap<String, Call>,
}

/// A budget as it stands in the cluster, and what the referee knows of it.
struct Account {
    budget: Budget,
    /// What is spent and reserved may be no more than this: the limit, or what it was when the limit was lowered.
    ceiling: [Option<i64>; 4],
    /// What the provider has billed, for sure or at worst.
    billed: Amount,
    /// The same with unknown outcomes as this account had reserved them.
    charged: Amount,
    /// Nobody died and nothing was closed over a slice: then what is spent is exact.
    exact: bool,
    /// Another period has taken its place.
    over: bool,
}

impl Account {
    fn new(limit: Limit) -> Self {
        let budget = Budget::new(limit);
        Account { ceiling: limits(limit), budget, billed: Amount::default(), charged: Amount::default(), exact: true, over: false }
    }

    fn taken(&self) -> Amount {
        amount(self.budget.spent).saturating_add(self.budget.reserved())
    }
}

struct World {
    /// Runs first, then the namespace's periods.
    accounts: Vec<Account>,
    namespace: Limit,
    processes: Vec<Process>,
    /// Of crashed ones.
    dead: Vec<String>,
    lives: Vec<usize>,
    ids: usize,
}

impl World {
    fn new(run: Limit, namespace: Limit) -> Self {
        let runs = (0..RUNS).map(|_| Account::new(run));
        World {
            accounts: runs.chain([Account::new(namespace)]).collect(),
            namespace,
            processes: (0..PROCESSES).map(|_| Process::default()).collect(),
            dead: Vec::new(),
            lives: vec![0; PROCESSES],
            ids: 0,
        }
    }

    fn id(&mut self) -> String {
        self.ids += 1;
        self.ids.to_string()
    }

    fn holder(&self, process: usize) -> String {
        format!("{process}/{}", self.lives[process])
    }

    fn own(&mut self, At { process, account }: At) -> (usize, &mut Own) {
        let account = account % self.accounts.len();
        (account, self.processes[process].own.entry(account).or_default())
    }

    /// Hold a call in what accounts it still lacks, as far as goes without a write.
    fn admit(&mut self, process: usize, mut call: Call) {
        let period = self.accounts.len() - 1;
        loop {
            let account = match call.held.len() {
                0 => call.run,
                1 => period,
                _ => return self.processes[process].calls.push(call),
            };
            let (_, own) = self.own(At { process, account });
            match own.lease.admit(&call.id, &call.ask) {
                Some(granted) => {
                    call.held.push((account, granted.amount));
                    call.ask.output_tokens = granted.amount.output_tokens;
                }
                None => {
                    own.waiting.push((call.id.clone(), call.ask));
                    self.processes[process].half.insert(call.id.clone(), call);
                    return;
                }
            }
        }
    }

    /// What one account refuses, the others get back.
    fn give_back(&mut self, process: usize, id: &str) {
        let Some(call) = self.processes[process].half.remove(id) else { return };
        for (account, _) in call.held {
            self.own(At { process, account }).1.lease.settle(id, Charge::Release);
        }
    }

    fn settle(&mut self, process: usize, call: Call, took: Option<i64>) {
        let granted = call.granted();
        let part = |number: i64, took: i64| number * took / 100;
        let amount = took.map(|took| Amount {
            requests: granted.requests,
            input_tokens: part(granted.input_tokens, took),
            output_tokens: part(granted.output_tokens, took),
            cost_micros: part(granted.cost_micros, took),
        });
        let charge = amount.map_or(Charge::Full { attempts: 1 }, |amount| Charge::Actual { amount, attempts: 1 });
        for (account, held) in call.held {
            let books = &mut self.accounts[account];
            books.billed = books.billed.saturating_add(amount.unwrap_or(granted));
            books.charged = books.charged.saturating_add(amount.unwrap_or(held));
            self.own(At { process, account }).1.lease.settle(&call.id, charge);
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Ask { process, run, input, output } => {
                let price = Some(Price { input: 300_000, output: 700_000 });
                let ask = Ask { requests: 1, input_tokens: input, output_tokens: output, price };
                let call = Call { id: self.id(), run, ask, held: Vec::new() };
                self.admit(process, call);
            }
            Step::Settle { process, call, took } => {
                let calls = &mut self.processes[process].calls;
                if !calls.is_empty() {
                    let call = calls.remove(call % calls.len());
                    self.settle(process, call, took);
                }
            }
            Step::Begin { at, exclusive, grow } => {
                let (_, own) = self.own(at);
                if own.writing.is_none() {
                    let asks = std::mem::take(&mut own.waiting);
                    let view = own.lease.begin(exclusive || !asks.is_empty());
                    own.writing = Some(Writing { doubtful: view.doubtful(), view, asks, grow, outcome: None });
                }
            }
            Step::Decide { at, fate } => {
                let (id, holder) = (self.id(), self.holder(at.process));
                let (account, _) = self.own(at);
                let mut budget = self.accounts[account].budget.clone();
                let Some(writing) = self.own(at).1.writing.as_mut().filter(|writing| writing.outcome.is_none()) else { return };
                let asks: Vec<(Ask, bool)> = writing.asks.iter().map(|(_, ask)| (*ask, true)).collect();
                let overrun_closes = account < RUNS;
                let how = Renewal { holder: &holder, id, now: 0, grow: writing.grow, ahead: 2, call_in: true, rest: false, overrun_closes };
                let renewed = writing.view.renew(&mut writing.doubtful, &mut budget, &asks, &how);
                // A lost answer is found out by deciding again, or it is given up.
                writing.outcome = (fate != Fate::Conflict).then_some((renewed, fate));
                if matches!(fate, Fate::Written | Fate::AnswerLost) {
                    self.accounts[account].budget = budget;
                }
            }
            Step::Finish { at } => {
                let (account, own) = self.own(at);
                let Some(Writing { outcome: Some((renewed, fate)), doubtful, asks, .. }) =
                    own.writing.take_if(|writing| writing.outcome.is_some())
                else {
                    return;
                };
                if fate != Fate::Written {
                    own.lease.in_doubt(doubtful);
                    asks.iter().for_each(|(id, _)| self.give_back(at.process, id));
                } else {
                    let ids: Vec<String> = asks.iter().map(|(id, _)| id.clone()).collect();
                    own.lease.written(&renewed, &ids);
                    let this = &self.processes[at.process];
                    let holds_nothing = !this.calls.iter().chain(this.half.values()).any(|call| call.is_held_by(account));
                    self.accounts[account].exact &= !renewed.lost || holds_nothing;
                    for (id, answer) in ids.iter().zip(&renewed.answers) {
                        match (answer, self.processes[at.process].half.remove(id)) {
                            (Ok(granted), Some(mut call)) => {
                                call.held.push((account, granted.amount));
                                call.ask.output_tokens = granted.amount.output_tokens;
                                self.admit(at.process, call);
                            }
                            (Err(_), Some(call)) => {
                                self.processes[at.process].half.insert(id.clone(), call);
                                self.give_back(at.process, id);
                            }
                            (_, None) => unreachable!("a call that waited is known"),
                        }
                    }
                }
            }
            Step::Crash { process } => {
                let holder = self.holder(process);
                self.dead.push(holder);
                self.lives[process] += 1;
                let gone = std::mem::take(&mut self.processes[process]);
                for call in gone.calls {
                    for (account, _) in &call.held {
                        let books = &mut self.accounts[*account];
                        books.billed = books.billed.saturating_add(call.granted());
                    }
                }
                self.accounts.iter_mut().for_each(|account| account.exact = false);
            }
            Step::Sweep => {
                for account in &mut self.accounts {
                    let orphans = account.budget.reservations.iter().filter(|r| self.dead.contains(&r.holder)).map(|r| r.id.clone());
                    for id in orphans.collect::<Vec<_>>() {
                        account.budget.settle(&id, None, 1);
                    }
                }
            }
            Step::Close { run, gently } => {
                let account = &mut self.accounts[run];
                if !gently {
                    account.exact &= account.budget.reservations.is_empty();
                    account.budget.close();
                } else if account.budget.gate == Gate::Open {
                    account.budget.gate = Gate::Closing;
                }
            }
            Step::NextPeriod => {
                if let Some(last) = self.accounts.last_mut() {
                    // As `AgentPolicyStatus::budget` has it of a window that another has overtaken.
                    (last.over, last.budget) = (true, Budget { gate: Gate::Closed, ..Budget::default() });
                }
                self.accounts.push(Account::new(self.namespace));
            }
            Step::Limit { part } => {
                let scaled = |number: i64| number * part / 100;
                let Limit { requests, input_tokens, output_tokens, cost_micros } = self.namespace;
                let limit = Limit {
                    requests: scaled(requests),
                    input_tokens: input_tokens.map(scaled),
                    output_tokens: output_tokens.map(scaled),
                    cost_micros: cost_micros.map(scaled),
                };
                if let Some(last) = self.accounts.last_mut() {
                    last.budget.limit = limit;
                    last.ceiling = ceiling(limit, last.taken());
                }
            }
        }
        self.check();
    }

    fn check(&mut self) {
        for (at, account) in self.accounts.iter_mut().enumerate().filter(|(_, account)| !account.over) {
            let Account { budget, ceiling: most, billed, .. } = &*account;
            let taken = account.taken();
            assert_eq!(budget.overrun, None);
            for (most, taken) in most.iter().zip(dimensions(taken)) {
                assert!(most.is_none_or(|most| taken <= most), "account {at} beyond its limit: {budget:?}");
            }
            let open = self.processes.iter().flat_map(|process| &process.calls).filter(|call| call.is_held_by(at));
            let at_most = open.fold(*billed, |sum, call| sum.saturating_add(call.granted()));
            assert!(at_most.fits(taken), "account {at}: billed {at_most:?} but booked {taken:?}: {budget:?}");
            assert!(budget.reservations.len() <= MAX_RESERVATIONS);
            account.ceiling = ceiling(account.budget.limit, taken);
        }
    }

    /// Everything ends well.
    fn end(mut self) {
        for _ in 0..3 {
            for process in 0..PROCESSES {
                for account in 0..self.accounts.len() {
                    let at = At { process, account };
                    for step in [
                        Step::Decide { at, fate: Fate::Written },
                        Step::Finish { at },
                        Step::Begin { at, exclusive: true, grow: false },
                        Step::Decide { at, fate: Fate::Written },
                        Step::Finish { at },
                    ] {
                        let waiting = std::mem::take(&mut self.own(at).1.waiting);
                        waiting.iter().for_each(|(id, _)| self.give_back(process, id));
                        while !self.processes[process].calls.is_empty() {
                            self.take(Step::Settle { process, call: 0, took: Some(50) });
                        }
                        self.take(step);
                    }
                }
            }
        }
        for process in &self.processes {
            assert!(process.half.is_empty() && process.calls.is_empty());
            process.own.values().for_each(|own| assert!(own.lease.is_empty(), "{:?}", own.lease));
        }
        self.take(Step::Sweep);
        for (at, account) in self.accounts.iter().enumerate().filter(|(_, account)| !account.over) {
            let (spent, budget) = (amount(account.budget.spent), &account.budget);
            assert_eq!(budget.reserved(), Amount::default(), "account {at}: nothing is left behind: {budget:?}");
            assert!(account.billed.fits(spent), "account {at}: spent {spent:?}, billed {:?}", account.billed);
            if account.exact {
                assert_eq!(spent, account.charged, "account {at}: a normal end is exact");
            }
        }
    }
}

/// No more may be taken than the limit, or than is taken already.
fn ceiling(limit: Limit, taken: Amount) -> [Option<i64>; 4] {
    let mut most = limits(limit);
    for (most, taken) in most.iter_mut().zip(dimensions(taken)) {
        *most = most.map(|most| most.max(taken));
    }
    most
}

fn limits(limit: Limit) -> [Option<i64>; 4] {
    [Some(limit.requests), limit.input_tokens, limit.output_tokens, limit.cost_micros]
}

fn amount(spent: Spent) -> Amount {
    Amount {
        requests: spent.requests,
        input_tokens: spent.input_tokens,
        output_tokens: spent.output_tokens,
        cost_micros: spent.cost_micros,
    }
}

fn limit() -> impl Strategy<Value = Limit> {
    let requests = prop_oneof![0..20i64, 100..400i64];
    (requests, proptest::option::of(0..20_000i64), proptest::option::of(0..20_000i64)).prop_map(|(requests, tokens, cost_micros)| Limit {
        requests,
        input_tokens: tokens,
        output_tokens: tokens,
        cost_micros,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn no_interleaving_spends_more_than_a_limit_or_books_less_than_was_billed(
        run in limit(),
        namespace in prop_oneof![1 => Just(Limit { requests: 1 << 40, ..Limit::default() }), 2 => limit()],
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut world = World::new(run, namespace);
        for step in steps {
            world.take(step);
        }
        world.end();
    }
}
