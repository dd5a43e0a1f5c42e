//! `AgentPolicy.status`: what the runs of the namespace have spent together, in each period that has a budget. Written by
//! gateways, by compare-and-swap. The rules of its schema stand in `schema/agent_policy_status.rs`.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::agent_policy::AgentPolicySpec;
use crate::agent_run::BudgetSpec;
use crate::budget::{Amount, Budget, Gate, Limit, Reservation, Spent};
use crate::period::{Period, Window};
use crate::quantity;

/// In place of an absent ceiling on requests.
const ANY_NUMBER: i64 = 1 << 53;
/// Shares of a budget, in percent, that are told of when they are passed.
pub const LOW: i64 = 80;
pub const USED_UP: i64 = 100;
/// From here on a call that does not fit says that nothing of use will. Earlier it says that the call was a large one.
const NEARLY_USED_UP: i64 = 99;

#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AgentPolicyStatus {
    /// A list-map by period. An entry stays, and is replaced when the next period begins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<PeriodStatus>,
    /// For people: `Day 43%, Month 12%`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent_text: Option<String>,
}

/// One hour, day or month.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PeriodStatus {
    pub period: Period,
    pub starts_at: Time,
    /// From then on another budget counts.
    pub ends_at: Time,
    /// Ceilings as they were at the last write; an absent dimension is unlimited.
    #[serde(default)]
    pub limit: PeriodLimit,
    /// What is gone for good. Never falls within a period.
    #[serde(default)]
    pub spent: Spent,
    /// Worst cases of calls in flight, and slices that gateways hold in advance; a list-map by id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<Reservation>,
    /// What providers reported beyond what was reserved. It counts as spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrun: Option<Amount>,
    /// Share of the limit that is spent, in the dimension in which it is largest.
    #[serde(default)]
    pub used_percent: i64,
    /// The share, 80 or 100, that an Event has told of. At 100 the budget is spent: nothing is left, or too little for a call.
    #[serde(default)]
    pub warned: i64,
}

/// Ceilings of a period; `None` is unlimited.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PeriodLimit {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<i64>,
    /// Millionths of the price unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<i64>,
}

impl PeriodLimit {
    /// A cost that is no decimal, which the schema refuses, is taken for none at all rather than for no limit.
    pub fn of(spec: &BudgetSpec) -> Self {
        PeriodLimit {
            requests: spec.requests,
            input_tokens: spec.input_tokens,
            output_tokens: spec.output_tokens,
            cost_micros: spec.cost.as_deref().map(|text| quantity::micros(text).unwrap_or(0)),
        }
    }

    /// As the arithmetic of budgets has it.
    pub fn ceilings(self) -> Limit {
        let PeriodLimit { requests, input_tokens, output_tokens, cost_micros } = self;
        Limit { requests: requests.unwrap_or(ANY_NUMBER), input_tokens, output_tokens, cost_micros }
    }
}

impl AgentPolicySpec {
    /// What the spec allows in a period; `None`: there is no budget for it.
    pub fn limit_of(&self, period: Period) -> Option<PeriodLimit> {
        self.budgets.iter().find(|budget| budget.period == period).map(|budget| PeriodLimit::of(&budget.limit))
    }
}

impl AgentPolicyStatus {
    /// What was last written of a period.
    pub fn of(&self, period: Period) -> Option<&PeriodStatus> {
        self.budgets.iter().find(|status| status.period == period)
    }

    /// The period whose budget is spent now, under the limit that the spec has now, which is put into the answer; of several the
    /// one that lasts longest. What was told of counts only under the limit that it was told of.
    pub fn spent_now(&self, spec: &AgentPolicySpec, now: Timestamp) -> Option<PeriodStatus> {
        let current = self.budgets.iter().filter(|status| (status.starts_at.0..status.ends_at.0).contains(&now));
        let limited = current.filter_map(|status| spec.limit_of(status.period).map(|limit| (status, limit)));
        let spent = limited.filter(|(status, limit)| {
            used_percent(*limit, status.spent) >= USED_UP || (status.warned >= USED_UP && status.limit == *limit)
        });
        let longest = spent.max_by_key(|(status, _)| status.ends_at.0);
        longest.map(|(status, limit)| PeriodStatus { limit, ..status.clone() })
    }

    /// The budget of one window as it stands. Closed where it is over or was never begun and is not in the spec; closing where
    /// the spec has it no more: what is held goes back, and nothing is admitted.
    pub fn budget(&self, spec: &AgentPolicySpec, window: &Window) -> Budget {
        let limit = spec.limit_of(window.period);
        let standing = self.of(window.period).filter(|standing| standing.starts_at.0 >= window.start);
        match (standing, limit) {
            (Some(standing), _) if standing.starts_at.0 > window.start => Budget { gate: Gate::Closed, ..Budget::default() },
            (Some(standing), limit) => Budget {
                limit: limit.unwrap_or(standing.limit).ceilings(),
                spent: standing.spent,
                reservations: standing.reservations.clone(),
                overrun: standing.overrun,
                gate: if limit.is_some() { Gate::Open } else { Gate::Closing },
            },
            (None, Some(limit)) => Budget::new(limit.ceilings()),
            (None, None) => Budget { gate: Gate::Closed, ..Budget::default() },
        }
    }

    /// Put in what `budget` gave, changed. `refused`: a call did not fit, and waiting would not help. What share is to be told of
    /// now, if any.
    pub fn put(&mut self, spec: &AgentPolicySpec, window: &Window, budget: Budget, refused: bool) -> Option<i64> {
        if budget.gate == Gate::Closed {
            return None;
        }
        let at = self.budgets.iter().position(|status| status.period == window.period);
        let before = at.and_then(|at| self.budgets.get(at)).filter(|before| before.starts_at.0 == window.start);
        let limit = spec.limit_of(window.period).or(before.map(|before| before.limit)).unwrap_or_default();
        let Budget { spent, reservations, overrun, .. } = budget;
        let used_percent = used_percent(limit, spent);
        let told = before.filter(|before| before.limit == limit).map_or(0, |before| before.warned);
        let passed = match used_percent {
            USED_UP.. => USED_UP,
            NEARLY_USED_UP.. if refused => USED_UP,
            LOW.. => LOW,
            _ => 0,
        };
        let after = PeriodStatus {
            period: window.period,
            starts_at: Time(window.start),
            ends_at: Time(window.end),
            limit,
            spent,
            reservations,
            overrun,
            used_percent,
            warned: told.max(passed),
        };
        // A period begins with the first call that it admits.
        let unused = before.is_none() && after.reservations.is_empty() && after.spent == Spent::default();
        if !unused {
            match at.and_then(|at| self.budgets.get_mut(at)) {
                Some(standing) => *standing = after,
                None => self.budgets.push(after),
            }
            self.spent_text = Some(self.text(spec));
        }
        (!unused && passed > told).then_some(passed)
    }

    fn text(&self, spec: &AgentPolicySpec) -> String {
        let shares = Period::ALL.into_iter().filter(|period| spec.limit_of(*period).is_some()).filter_map(|period| self.of(period));
        shares.map(|status| format!("{} {}%", status.period.as_str(), status.used_percent)).collect::<Vec<_>>().join(", ")
    }
}

fn used_percent(limit: PeriodLimit, spent: Spent) -> i64 {
    let share = |limit: Option<i64>, spent: i64| match limit {
        None => 0,
        Some(0) => i128::from(USED_UP),
        Some(limit) => i128::from(spent) * 100 / i128::from(limit),
    };
    let shares = [
        share(limit.requests, spent.requests),
        share(limit.input_tokens, spent.input_tokens),
        share(limit.output_tokens, spent.output_tokens),
        share(limit.cost_micros, spent.cost_micros),
    ];
    i64::try_from(shares.into_iter().max().unwrap_or(0)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(budgets: Value) -> AgentPolicySpec {
        serde_json::from_value(json!({"models": [], "images": [], "budgets": budgets})).expect("a spec")
    }

    fn day(requests: i64) -> AgentPolicySpec {
        spec(json!([{"period": "Day", "limit": {"requests": requests}}]))
    }

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    /// Charge so many requests in the window of `now`; what is told of then.
    fn charge(status: &mut AgentPolicyStatus, spec: &AgentPolicySpec, now: &str, requests: i64, refused: bool) -> Option<i64> {
        let window = Window::at(Period::Day, at(now));
        let mut budget = status.budget(spec, &window);
        budget.spent.requests += requests;
        status.put(spec, &window, budget, refused)
    }

    #[test]
    fn shares_are_told_of_once_for_each_period_and_limit() {
        let mut status = AgentPolicyStatus::default();
        let (ten, twenty) = (day(10), day(20));
        let today = "2026-11-30T12:00:00Z";
        for (step, (spec, now, requests, refused, told, text)) in [
            (&ten, today, 0, true, None, None),
            (&ten, today, 7, true, None, Some("Day 70%")),
            (&ten, today, 1, false, Some(80), Some("Day 80%")),
            (&ten, today, 1, false, None, Some("Day 90%")),
            (&ten, today, 0, true, None, Some("Day 90%")),
            (&ten, today, 1, true, Some(100), Some("Day 100%")),
            (&twenty, today, 1, false, None, Some("Day 55%")),
            (&twenty, today, 5, false, Some(80), Some("Day 80%")),
            (&twenty, today, 9, false, Some(100), Some("Day 125%")),
            (&ten, "2026-12-01T00:00:00Z", 1, false, None, Some("Day 10%")),
            // A gateway whose clock is behind changes nothing.
            (&ten, today, 5, false, None, Some("Day 10%")),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!((charge(&mut status, spec, now, requests, refused), status.spent_text.as_deref()), (told, text), "step {step}");
        }
    }

    #[test]
    fn a_period_is_spent_until_it_ends_or_its_limit_changes() {
        let mut status = AgentPolicyStatus::default();
        charge(&mut status, &day(10), "2026-11-30T12:00:00Z", 10, false);
        for (spec, now, expected) in [
            (day(10), "2026-11-30T12:00:00Z", true),
            (day(10), "2026-11-30T23:59:59Z", true),
            (day(10), "2026-12-01T00:00:00Z", false),
            (day(11), "2026-11-30T12:00:00Z", false),
            (day(2), "2026-11-30T12:00:00Z", true),
            (day(2), "2026-12-01T00:00:00Z", false),
            (spec(json!([])), "2026-11-30T12:00:00Z", false),
        ] {
            let spent = status.spent_now(&spec, at(now));
            assert_eq!(spent.is_some(), expected, "{now}");
            assert!(spent.is_none_or(|spent| Some(spent.limit) == spec.limit_of(Period::Day)), "{now}");
        }
        let mut nearly = AgentPolicyStatus::default();
        charge(&mut nearly, &day(100), "2026-11-30T12:00:00Z", 98, true);
        assert!(nearly.spent_now(&day(100), at("2026-11-30T12:00:00Z")).is_none(), "a call that was too large holds up nobody");
        charge(&mut nearly, &day(100), "2026-11-30T12:00:00Z", 1, true);
        for (limit, expected) in [(100, true), (110, false), (99, true), (200, false)] {
            assert_eq!(nearly.spent_now(&day(limit), at("2026-11-30T12:00:00Z")).is_some(), expected, "a limit of {limit}");
        }
    }

    #[test]
    fn a_budget_is_open_only_in_the_window_that_counts_and_while_the_spec_has_it() {
        let mut status = AgentPolicyStatus::default();
        let window = |now: &str| Window::at(Period::Day, at(now));
        let (today, tomorrow) = (window("2026-11-30T12:00:00Z"), window("2026-12-01T12:00:00Z"));
        assert_eq!(status.budget(&spec(json!([])), &today).gate, Gate::Closed);
        charge(&mut status, &day(10), "2026-11-30T12:00:00Z", 4, false);
        let gate_and_spent = |spec: &AgentPolicySpec, window: &Window| {
            let budget = status.budget(spec, window);
            (budget.gate, budget.spent.requests, budget.limit.requests)
        };
        assert_eq!(gate_and_spent(&day(10), &today), (Gate::Open, 4, 10));
        assert_eq!(gate_and_spent(&day(2), &today), (Gate::Open, 4, 2), "the spec counts");
        assert_eq!(gate_and_spent(&spec(json!([])), &today), (Gate::Closing, 4, 10));
        assert_eq!(gate_and_spent(&day(10), &tomorrow), (Gate::Open, 0, 10));
        charge(&mut status, &day(10), "2026-12-01T12:00:00Z", 1, false);
        assert_eq!(status.budget(&day(10), &today).gate, Gate::Closed, "overtaken");
    }
}
