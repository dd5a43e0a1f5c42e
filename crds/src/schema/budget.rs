//! Rules of `status.budget`: spending never falls, limits never rise, a closed gate stays closed, and what is spent plus
//! what is reserved stays within the limit unless a provider overran its reservation.

use super::node::Node;
use crate::budget::MAX_RESERVATIONS;

/// A dimension, and whether its limit may be absent (= unlimited).
pub const DIMENSIONS: [(&str, bool); 4] = [("requests", false), ("inputTokens", true), ("outputTokens", true), ("costMicros", true)];

pub fn shape(budget: &mut Node<'_>) {
    bounds(budget);
    for (dimension, optional) in DIMENSIONS {
        let limit = format!("self.limit.{dimension} <= oldSelf.limit.{dimension}");
        let limit = match optional {
            true => format!("!has(oldSelf.limit.{dimension}) || (has(self.limit.{dimension}) && {limit})"),
            false => limit,
        };
        let unlimited = if optional { format!("!has(self.limit.{dimension}) || ") } else { String::new() };
        budget
            .rule_on(&format!("limit.{dimension}"), limit, "never rises and is never removed")
            .rule_on(&format!("spent.{dimension}"), format!("self.spent.{dimension} >= oldSelf.spent.{dimension}"), "never falls")
            .rule_on(
                &format!("spent.{dimension}"),
                format!("{unlimited}has(self.overrun) || {} <= self.limit.{dimension}", taken("self", dimension)),
                "plus what is reserved must be within the limit, unless overrun says by how much a provider went beyond",
            );
    }
    budget
        .rule_on("spent.upstreamAttempts", "self.spent.upstreamAttempts >= oldSelf.spent.upstreamAttempts", "never falls")
        .rule_on("gate", "oldSelf.gate != 'Closed' || self.gate == 'Closed'", "stays Closed once it is")
        .rule_on("gate", "oldSelf.gate != 'Closing' || self.gate != 'Open'", "never opens again")
        .rule_on(
            "reservations",
            "self.gate != 'Closed' || !has(self.reservations) || size(self.reservations) == 0",
            "must be empty when gate is Closed: closing charges them",
        )
        .rule_on("overrun", "!has(self.overrun) || self.gate == 'Closed'", "closes the gate")
        .rule_on(
            "overrun",
            format!("!has(self.overrun) || {}", DIMENSIONS.map(|(d, _)| format!("self.overrun.{d} > 0")).join(" || ")),
            "must be above 0 in some dimension, or absent",
        )
        .rule_on(
            "overrun",
            format!(
                "!has(oldSelf.overrun) || (has(self.overrun) && {})",
                DIMENSIONS.map(|(d, _)| format!("self.overrun.{d} >= oldSelf.overrun.{d}")).join(" && ")
            ),
            "never falls and is never removed",
        );
}

/// Bounds of a budget's parts, be it a run's or a period's.
pub fn bounds(budget: &mut Node<'_>) {
    for part in ["limit", "spent", "reservations[]", "overrun"] {
        amounts(&mut budget.at(part));
    }
    budget.at("spent.upstreamAttempts").natural();
    budget.at("reservations").list_by("id", 0, MAX_RESERVATIONS);
    budget.at("reservations[].id").chars(1, 128);
    budget.at("reservations[].holder").chars(1, 253);
    budget.at("reservations[].since").natural();
}

/// What is spent and reserved in a dimension, as CEL.
pub fn taken(of: &str, dimension: &str) -> String {
    format!("{of}.spent.{dimension} + (has({of}.reservations) ? {of}.reservations.map(r, r.{dimension}).sum() : 0)")
}

/// No dimension is negative.
pub fn amounts(node: &mut Node<'_>) {
    for (dimension, _) in DIMENSIONS {
        node.at(dimension).natural();
    }
}
