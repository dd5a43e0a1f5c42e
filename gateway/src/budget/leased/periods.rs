//! Admission in the budgets of a namespace, once the run's own has admitted the call: each is asked for what the one before has granted,
//! and what one of them refuses gives back what the others hold.

use std::sync::Arc;

use agentrun_crds::period::Period;
use agentrun_crds::{AgentPolicy, AgentRun};

use super::super::account::Account;
use super::super::{Ask, NotAdmitted, Reserved};
use super::LeasedLedger;
use crate::error::ApiError;
use crate::{policies, runs};

/// A period may end, or a policy change, between the look and the write; not this often.
const TRIES: usize = 4;

impl LeasedLedger {
    /// The policy of the run's namespace, if there is a budget in it.
    pub(super) fn policy_with_budgets(&self, run: &AgentRun) -> Option<Arc<AgentPolicy>> {
        self.0.accounts.policies.get(runs::namespace(run)).filter(|policy| !policy.spec.budgets.is_empty())
    }

    /// Hold in every period what the run's account holds.
    pub(super) async fn reserve_in_periods(&self, mut reserved: Reserved, policy: &AgentPolicy, ask: Ask) -> Result<Reserved, NotAdmitted> {
        for budget in &policy.spec.budgets {
            let ask = Ask { output_tokens: reserved.granted().amount.output_tokens, ..ask };
            if let Some(held) = self.reserve_in_period(policies::namespace(policy), budget.period, ask).await? {
                reserved = reserved.and(held);
            }
        }
        Ok(reserved)
    }

    /// `None`: there is no such budget any more.
    async fn reserve_in_period(&self, namespace: &str, period: Period, ask: Ask) -> Result<Option<Reserved>, NotAdmitted> {
        for _ in 0..TRIES {
            let policy = self.0.accounts.policies.get(namespace).filter(|policy| policy.spec.limit_of(period).is_some());
            let Some(policy) = policy else { return Ok(None) };
            let now = self.0.clock.now();
            let account = Account::of_period(policy, period, now);
            match self.reserve_in(&account, None, ask).await {
                Err(NotAdmitted::Inactive) => {}
                Err(NotAdmitted::Exhausted(dimension)) => {
                    let Account::Period(_, window) = account else { break };
                    let seconds_left = window.end.as_second().saturating_sub(now.as_second());
                    return Err(NotAdmitted::NamespaceExhausted { dimension, window, seconds_left });
                }
                answer => return answer.map(Some),
            }
        }
        Err(NotAdmitted::Failed(ApiError::unavailable("contended", "the namespace's budget is being changed; try again")))
    }
}
