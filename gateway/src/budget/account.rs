//! Where a budget stands: in a run's status, or, for all runs of a namespace together, in that of the namespace's policy.

use std::sync::Arc;

use agentrun_crds::budget::{Budget, Gate, Limit, Reservation};
use agentrun_crds::period::{Period, Window};
use agentrun_crds::{AgentPolicy, AgentRun};
use agentrun_protocol::token::Claims;
use jiff::Timestamp;

use crate::auth::check_active;
use crate::status_update::version;
use crate::{policies, runs};

/// As it was at one version of its object. Cheap to clone.
#[derive(Clone)]
pub enum Account {
    Run(Arc<AgentRun>),
    /// Of the namespace's policy, one hour, day or month.
    Period(Arc<AgentPolicy>, Window),
}

impl Account {
    /// The account of a period that counts now. Should another gateway's clock have begun a later one, that.
    pub fn of_period(policy: Arc<AgentPolicy>, period: Period, now: Timestamp) -> Account {
        let begun = policy.status.as_ref().and_then(|status| status.of(period)).map(|status| status.starts_at.0);
        let window = Window::at(period, begun.map_or(now, |begun| begun.max(now)));
        Account::Period(policy, window)
    }

    /// The same for ever, and for another object of the same name in the case of a period: a policy that was deleted and made
    /// again has not spent less.
    pub fn key(&self) -> String {
        match self {
            Account::Run(run) => runs::uid(run).to_owned(),
            Account::Period(policy, window) => format!("{}/{}/{}", policies::namespace(policy), window.period.as_str(), window.start),
        }
    }

    /// Whether a key is that of a period; UIDs have no slashes.
    pub fn is_of_period(key: &str) -> bool {
        key.contains('/')
    }

    /// Whether a key is that of a period which is over.
    pub fn is_period_before(key: &str, now: Timestamp) -> bool {
        let Some((_, rest)) = key.split_once('/') else { return false };
        let Some((word, start)) = rest.split_once('/') else { return false };
        let period = Period::ALL.into_iter().find(|period| period.as_str() == word);
        period.zip(start.parse().ok()).is_some_and(|(period, start)| Window::at(period, start).end <= now)
    }

    /// Of its object; a larger one is newer.
    pub fn version(&self) -> u64 {
        match self {
            Account::Run(run) => version(&**run),
            Account::Period(policy, _) => version(&**policy),
        }
    }

    /// For the log.
    pub fn name(&self) -> String {
        match self {
            Account::Run(run) => format!("{}/{}", runs::namespace(run), runs::name(run)),
            Account::Period(..) => self.key(),
        }
    }

    /// Slices and calls in flight, of all gateways.
    pub fn reservations(&self) -> &[Reservation] {
        match self {
            Account::Run(run) => budget(run).map_or(&[], |budget| &budget.reservations),
            Account::Period(policy, window) => {
                let standing = policy.status.as_ref().and_then(|status| status.of(window.period));
                standing.filter(|standing| standing.starts_at.0 == window.start).map_or(&[], |standing| &standing.reservations)
            }
        }
    }

    /// Requests that are gone for good at this version.
    pub fn requests_spent(&self) -> i64 {
        match self {
            Account::Run(run) => budget(run).map_or(0, |budget| budget.spent.requests),
            Account::Period(policy, window) => {
                policy.status.as_ref().map_or(0, |status| status.budget(&policy.spec, window).spent.requests)
            }
        }
    }

    /// What counts as the ceiling at this version.
    pub fn limit(&self) -> Limit {
        match self {
            Account::Run(run) => budget(run).map(|budget| budget.limit).unwrap_or_default(),
            Account::Period(policy, window) => policy.spec.limit_of(window.period).unwrap_or_default().ceilings(),
        }
    }

    /// Whether its status shows another ceiling than counts, as it does once a policy was changed.
    pub fn shows_another_limit(&self) -> bool {
        let Account::Period(policy, window) = self else { return false };
        let standing = policy.status.as_ref().and_then(|status| status.of(window.period));
        let shown = standing.filter(|standing| standing.starts_at.0 == window.start).map(|standing| standing.limit);
        shown.zip(policy.spec.limit_of(window.period)).is_some_and(|(shown, limit)| shown != limit)
    }

    /// Whether it takes calls of who shows these claims, which a period does not ask for.
    pub fn honours(&self, claims: Option<&Claims>) -> bool {
        match self {
            Account::Run(run) => claims.is_some_and(|claims| check_active(run, claims).is_ok()),
            Account::Period(..) => !self.is_ending(),
        }
    }

    /// Whether it takes no more calls, or not for long.
    pub fn is_ending(&self) -> bool {
        match self {
            Account::Run(run) => {
                run.spec.cancel
                    || run.metadata.deletion_timestamp.is_some()
                    || runs::is_terminal(run)
                    || run.status.as_ref().is_none_or(|status| status.result.is_some())
                    || budget(run).is_none_or(|budget| budget.gate != Gate::Open)
            }
            Account::Period(policy, window) => policy.spec.limit_of(window.period).is_none() || self.is_overtaken(),
        }
    }

    /// Whether another process waits for what is held in advance.
    pub fn is_wanted(&self, holder: &str) -> bool {
        self.reservations().iter().any(|r| r.is_request() && r.holder != holder)
    }

    /// A later period has begun.
    fn is_overtaken(&self) -> bool {
        let Account::Period(policy, window) = self else { return false };
        policy.status.as_ref().and_then(|status| status.of(window.period)).is_some_and(|standing| standing.starts_at.0 > window.start)
    }

    /// Whether nothing is to be booked any more.
    pub fn is_over(&self, now: Timestamp) -> bool {
        match self {
            Account::Run(run) => runs::is_terminal(run),
            Account::Period(_, window) => window.end <= now,
        }
    }
}

fn budget(run: &AgentRun) -> Option<&Budget> {
    run.status.as_ref().and_then(|status| status.budget.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_of_periods_that_are_over_are_forgotten() {
        let now: Timestamp = "2026-11-30T12:00:00Z".parse().expect("a time");
        for (key, expected) in [
            (crate::fixtures::RUN_UID, false),
            ("team/Hour/2026-11-30T11:00:00Z", true),
            ("team/Hour/2026-11-30T12:00:00Z", false),
            ("team/Day/2026-11-30T00:00:00Z", false),
            ("team/Day/2026-11-29T00:00:00Z", true),
            ("team/Month/2026-10-01T00:00:00Z", true),
            ("team/Week/2026-10-01T00:00:00Z", false),
            ("team/Day", false),
        ] {
            assert_eq!(Account::is_period_before(key, now), expected, "{key}");
        }
    }

    #[test]
    fn a_period_that_another_gateway_has_begun_counts() {
        let at = |text: &str| -> Timestamp { text.parse().expect("a time") };
        let policy = |starts_at: &str, ends_at: &str| -> Arc<AgentPolicy> {
            Arc::new(
                serde_json::from_value(serde_json::json!({
                    "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentPolicy", "metadata": {"name": "default", "namespace": "team"},
                    "spec": {"models": [], "images": []},
                    "status": {"budgets": [{"period": "Hour", "startsAt": starts_at, "endsAt": ends_at}]},
                }))
                .expect("a policy"),
            )
        };
        let now = at("2026-11-30T12:30:00Z");
        for (starts_at, ends_at, expected) in [
            ("2026-11-30T11:00:00Z", "2026-11-30T12:00:00Z", "team/Hour/2026-11-30T12:00:00Z"),
            ("2026-11-30T12:00:00Z", "2026-11-30T13:00:00Z", "team/Hour/2026-11-30T12:00:00Z"),
            ("2026-11-30T13:00:00Z", "2026-11-30T14:00:00Z", "team/Hour/2026-11-30T13:00:00Z"),
        ] {
            assert_eq!(Account::of_period(policy(starts_at, ends_at), Period::Hour, now).key(), expected);
        }
    }
}
