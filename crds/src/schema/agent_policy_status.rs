//! Rules of `AgentPolicy.status`: within a period spending never falls, and what is spent plus what is reserved rises no
//! further than the limit; periods follow each other.

use super::budget::{self, DIMENSIONS};
use super::node::Node;
use crate::period::Period;

pub fn shape(status: &mut Node<'_>) {
    status.at("spentText").chars(0, 64);
    status.rule_on(
        "budgets",
        "!has(oldSelf.budgets) || (has(self.budgets) && oldSelf.budgets.all(o, self.budgets.exists(b, b.period == o.period)))",
        "an entry is replaced by the next period's and never removed: what is spent stays spent",
    );
    let mut budgets = status.at("budgets");
    budgets.list_by("period", 0, Period::ALL.len());
    period(&mut budgets.each());
}

fn period(entry: &mut Node<'_>) {
    budget::bounds(entry);
    entry.at("usedPercent").natural();
    entry.at("warned").range(0, 100);
    entry
        .rule_on("startsAt", "self.startsAt >= oldSelf.startsAt", "never goes back to an earlier period")
        .rule_on("endsAt", "self.endsAt > self.startsAt", "must be after startsAt")
        .rule_on(
            "warned",
            "self.startsAt != oldSelf.startsAt || self.limit != oldSelf.limit || self.warned >= oldSelf.warned",
            "never falls within a period unless the limit changes",
        );
    let in_period = |rule: String| format!("self.startsAt != oldSelf.startsAt || {rule}");
    for (dimension, _) in DIMENSIONS {
        let (spent, taken) = (format!("spent.{dimension}"), budget::taken("self", dimension));
        let within = format!("!has(self.limit.{dimension}) || has(self.overrun) || {taken} <= self.limit.{dimension}");
        let no_more = format!("(self.startsAt == oldSelf.startsAt && {taken} <= {})", budget::taken("oldSelf", dimension));
        // An old item that is an optional does not compare its times with the new one's, so this takes two rules.
        entry
            .rule_on(&spent, in_period(format!("self.spent.{dimension} >= oldSelf.spent.{dimension}")), "never falls within a period")
            .rule_on(
                &spent,
                format!("{within} || {no_more}"),
                "plus what is reserved must be within the limit, or, where the limit was lowered, no more than before",
            )
            .rule_from_birth(
                format!("oldSelf.hasValue() || {within}"),
                format!("what is spent and reserved of {dimension} must be within the limit"),
            );
    }
    entry.rule_on(
        "overrun",
        in_period(format!(
            "!has(oldSelf.overrun) || (has(self.overrun) && {})",
            DIMENSIONS.map(|(d, _)| format!("self.overrun.{d} >= oldSelf.overrun.{d}")).join(" && ")
        )),
        "never falls and is never removed within a period",
    );
}
