//! Bounds of `AgentRunRecord`. Only the operator writes it.

use super::node::Node;
use super::{budget, grammar};
use crate::conditions::Reason;

pub fn shape(record: &mut Node<'_>) {
    let spec = &mut record.at("spec");
    spec.at("runUid").chars(1, 64);
    spec.at("specSha256").pattern("^[0-9a-f]{64}$").chars(64, 64);
    spec.at("reason").chars(1, 64).words(Reason::ALL.iter().map(|reason| reason.as_str()));
    spec.rule_on("phase", "self.phase in ['Succeeded', 'Failed', 'Cancelled']", "must be terminal: Succeeded, Failed or Cancelled");
    grammar::text(&mut spec.at("submittedBy"), 1, 512);
    budget::amounts(&mut spec.at("spent"));
    spec.at("patch.digest").pattern("^sha256:[0-9a-f]{64}$").chars(71, 71);
    spec.at("patch.bytes").natural();
}
