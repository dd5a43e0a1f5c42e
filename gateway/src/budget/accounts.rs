//! All accounts: how they are found, followed and written. The rest of the ledger does not know what kind of object a budget
//! stands in.

use std::sync::Arc;

use agentrun_crds::budget::{Budget, Gate};
use agentrun_crds::period::Period;
use agentrun_crds::{AgentPolicy, AgentRun};
use agentrun_protocol::token::Claims;
use jiff::Timestamp;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::account::Account;
use crate::auth::check_active;
use crate::error::ApiError;
use crate::policies::{self, PolicyDirectory, PolicyWriter, Warning};
use crate::runs::{self, RunDirectory, StatusWriter};

/// Cheap to clone.
#[derive(Clone)]
pub struct Accounts {
    pub runs: RunDirectory,
    pub run_status: StatusWriter,
    pub policies: PolicyDirectory,
    pub policy_status: PolicyWriter,
}

/// What `Accounts::update` may ask of the object that it decides on: whether it honours these claims.
pub type Honours<'a> = &'a dyn Fn(Option<&Claims>) -> bool;

impl Accounts {
    /// Wait until every object is known.
    pub async fn wait_synced(&self) {
        self.runs.wait_synced().await;
        self.policies.wait_synced().await;
    }

    /// Every account that may hold something.
    pub fn snapshot(&self, now: Timestamp) -> Vec<Account> {
        let runs = self.runs.snapshot().into_iter().map(Account::Run);
        runs.chain(self.policies.snapshot().into_iter().flat_map(|policy| periods(&policy, now))).collect()
    }

    /// Whether an account may still be of use.
    pub fn has(&self, key: &str, now: Timestamp) -> bool {
        if Account::is_of_period(key) { !Account::is_period_before(key, now) } else { self.runs.get(key).is_some() }
    }

    /// The same account at the newest version that is known.
    pub fn freshest(&self, account: &Account) -> Option<Account> {
        match account {
            Account::Run(run) => self.runs.freshest(runs::uid(run)).map(Account::Run),
            Account::Period(policy, window) => {
                self.policies.get(policies::namespace(policy)).map(|policy| Account::Period(policy, *window))
            }
        }
    }

    /// Let `decide` change the budget, and write it: see `status_update::update`. The second answer is what a namespace must be
    /// told of.
    pub async fn update<T>(
        &self,
        account: &Account,
        mut decide: impl FnMut(&mut Budget, Honours<'_>) -> Decided<T>,
    ) -> Result<(T, Account, Option<Warning>), ApiError> {
        match account {
            Account::Run(run) => {
                let decide = |run: &AgentRun, status: &mut agentrun_crds::AgentRunStatus| {
                    let before = status.budget.clone();
                    let mut budget = before.clone().unwrap_or_else(|| Budget { gate: Gate::Closed, ..Budget::default() });
                    let decided = decide(&mut budget, &|claims| claims.is_some_and(|claims| check_active(run, claims).is_ok()));
                    if before.is_some_and(|before| before != budget) {
                        status.requests_text = Some(budget.requests_text());
                        status.cost_text = Some(budget.cost_text());
                        status.budget = Some(budget);
                    }
                    Ok(decided.value)
                };
                let (value, run) = self.run_status.update(run, decide).await?;
                Ok((value, Account::Run(run), None))
            }
            Account::Period(policy, window) => {
                // An earlier try may have been written although its answer was lost; to tell twice is harmless.
                let mut passed = None;
                let decide = |policy: &AgentPolicy, status: &mut agentrun_crds::AgentPolicyStatus| {
                    let mut budget = status.budget(&policy.spec, window);
                    let Decided { value, refused } = decide(&mut budget, &|_| true);
                    passed = status.put(&policy.spec, window, budget, refused).max(passed);
                    value
                };
                let (value, policy) = self.policy_status.update(policy, decide).await?;
                let told = policy.status.as_ref().and_then(|status| status.of(window.period)).map_or(0, |status| status.warned);
                let warning = passed.filter(|percent| *percent <= told);
                let warning = warning.map(|percent| Warning { policy: policy.clone(), window: *window, percent });
                Ok((value, Account::Period(policy, *window), warning))
            }
        }
    }

    /// What changes from now on.
    pub fn changes(&self) -> Changes {
        Changes { runs: self.runs.changes(), policies: self.policies.changes() }
    }

    /// The accounts of a change; all of them where changes were missed. `None`: nothing will change any more.
    pub async fn changed(&self, changes: &mut Changes, now: impl Fn() -> Timestamp) -> Option<Vec<Account>> {
        tokio::select! {
            run = changes.runs.recv() => match run {
                Ok(run) => Some(vec![Account::Run(run)]),
                Err(RecvError::Lagged(_)) => Some(self.snapshot(now())),
                Err(RecvError::Closed) => None,
            },
            policy = changes.policies.recv() => match policy {
                Ok(policy) => Some(periods(&policy, now())),
                Err(RecvError::Lagged(_)) => Some(self.snapshot(now())),
                Err(RecvError::Closed) => None,
            },
        }
    }
}

/// What was decided on a budget, and whether a call was refused for good.
pub struct Decided<T> {
    pub value: T,
    pub refused: bool,
}

/// Of runs and policies.
pub struct Changes {
    runs: broadcast::Receiver<Arc<AgentRun>>,
    policies: broadcast::Receiver<Arc<AgentPolicy>>,
}

impl Changes {
    /// Wait for a change of this account's object.
    pub async fn of(&mut self, account: &Account) {
        match account {
            Account::Run(run) => while !matches!(self.runs.recv().await, Ok(changed) if runs::uid(&changed) == runs::uid(run)) {},
            Account::Period(policy, _) => {
                let namespace = policies::namespace(policy);
                while !matches!(self.policies.recv().await, Ok(changed) if policies::namespace(&changed) == namespace) {}
            }
        }
    }
}

fn periods(policy: &Arc<AgentPolicy>, now: Timestamp) -> Vec<Account> {
    Period::ALL.into_iter().map(|period| Account::of_period(policy.clone(), period, now)).collect()
}
