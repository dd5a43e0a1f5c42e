//! Rules of `AgentRun.status`. They stand on the parent of what they guard: a rule on a field is not asked when the field
//! is dropped. `phase` and `result` end for good, attempts and ids only grow, an approval follows its lattice.

use super::node::Node;
use super::{budget, grammar};
use crate::agent_run_status::MAX_OMITTED;
use crate::conditions::Reason;

const SHA256: &str = "^[0-9a-f]{64}$";
const TERMINAL: &str = "['Succeeded', 'Failed', 'Cancelled']";
/// An absent list is an empty one.
const APPROVALS: &str = "(has(self.approvals) ? self.approvals : [])";
const OLD_APPROVALS: &str = "(has(oldSelf.approvals) ? oldSelf.approvals : [])";

pub fn shape(status: &mut Node<'_>) {
    bounds(status);
    resolved_bounds(&mut status.at("resolved"));
    approval(status);
    result_bounds(&mut status.at("result"));
    budget::shape(&mut status.at("budget"));
    phase(status);
    attempt(status);
    once(status);
}

fn bounds(status: &mut Node<'_>) {
    status.at("conditions").list_by("type", 0, 16);
    let mut condition = status.at("conditions[]");
    condition.at("type").chars(1, 64);
    condition.at("status").words(["True", "False", "Unknown"].into_iter());
    condition.at("reason").chars(1, 128);
    condition.at("message").chars(0, 4_096);
    condition.at("observedGeneration").natural();
    status.at("observedGeneration").range(-1, 1 << 53);
    for counter in ["pendingApprovals", "artifacts.count", "artifacts.bytes", "exchange.at"] {
        status.at(counter).natural();
    }
    for counter in ["waitedSeconds", "source.bytes", "source.files"] {
        status.at(counter).natural();
    }
    for counter in ["asked", "allowed", "denied", "expired"] {
        status.at("approvalTotals").at(counter).natural();
    }
    status.at("source.digest").pattern("^sha256:[0-9a-f]{64}$").chars(71, 71);
    for id in ["commit", "tree", "stagedTree"] {
        status.at("source.git").at(id).pattern("^[0-9a-f]{40}$").chars(40, 40);
    }
    status.at("source.git.omitted").list(0, MAX_OMITTED).each().chars(1, grammar::PATH_BYTES);
    status.at("sourceFailure.message").chars(1, 1_024);
    for from_one in ["attempt", "exchange.attempt", "nextApprovalId"] {
        status.at(from_one).range(1, 1_000_000_000);
    }
    status.at("ticketSha256").pattern(SHA256).chars(64, 64);
    status.at("earlier.runUid").chars(1, 64);
    status.at("earlier.patch.digest").pattern("^sha256:[0-9a-f]{64}$").chars(71, 71);
    status.at("earlier.patch.bytes").natural();
    status.at("podRef.name").chars(1, 253);
    status.at("podRef.uid").chars(1, 64);
    status.at("exchange.publicKey").chars(1, 128);
    status.at("exchange.nonce").chars(1, 128);
    status.at("exchange.walls").list_set(0, 16).each().chars(1, 64);
    status.at("exchange.network").list_by("target", 0, 16);
    status.at("requestsText").chars(0, 48);
    status.at("costText").chars(0, 48);
}

fn model_bounds(model: &mut Node<'_>) {
    model.at("provider").chars(1, 253);
    model.at("model").chars(1, 256);
    model.at("maxOutputTokens").range(1, 1_000_000_000);
    for price in ["input", "output", "cachedInput", "cacheWrite"] {
        model.at(&format!("{price}MicrosPerMillion")).natural();
    }
}

fn resolved_bounds(resolved: &mut Node<'_>) {
    resolved.at("policySha256").pattern(SHA256).chars(64, 64);
    for (name, most) in [("image", 512), ("runtimeClassName", 253)] {
        resolved.at(name).chars(1, most);
    }
    for model in ["model", "embeddings"] {
        resolved.at(model).at("name").chars(1, 128);
        resolved.at(model).at("fallbacks").list(0, 4);
        model_bounds(&mut resolved.at(model));
        model_bounds(&mut resolved.at(model).at("fallbacks[]"));
    }
    for quantity in ["cpu", "memory", "workspace"] {
        resolved.at(quantity).chars(1, 32);
    }
    for count in ["maxSteps", "wallTimeSeconds", "startupDeadlineSeconds"] {
        resolved.at(count).range(1, 1_000_000_000);
    }
    budget::amounts(&mut resolved.at("budget"));
    resolved.at("git.secret").chars(1, 253);
    resolved.at("git.maxBytes").range(1, 1 << 30);
    resolved.at("git.timeoutSeconds").range(1, 3_600);
    resolved.at("allowedPaths").list(0, 64).each().chars(1, grammar::PATH_BYTES + 3);
    for (rules, most) in [("approvals.policyRules", 32), ("approvals.runRules", 16)] {
        let mut rules = resolved.at(rules);
        rules.list(0, most);
        let mut rule = rules.each();
        rule.at("tools").list(0, 16).each().chars(1, 64);
        rule.at("argv").list(1, 32).each().chars(0, 256);
        rule.at("paths").list(0, 16).each().chars(1, grammar::PATH_BYTES + 3);
    }
    for seconds in ["approvals.timeoutSeconds", "approvals.maxPauseSeconds"] {
        resolved.at(seconds).range(0, 1_000_000_000);
    }
    resolved.at("harness.name").chars(1, 253);
    super::agent_template::bounds(&mut resolved.at("harness.template"));
    resolved.at("checks").list(0, 16);
    resolved.at("checks[].name").chars(1, 63);
    resolved.at("checks[].argv").list(1, 32).each().chars(0, 2_048);
}

fn result_bounds(result: &mut Node<'_>) {
    result.at("attempt").range(1, 1_000_000_000);
    result.at("verdict").chars(1, 64).words(Reason::ALL.iter().map(|reason| reason.as_str()));
    grammar::text(&mut result.at("message"), 0, 1_024);
    result.at("checks").list(0, 16);
    result.at("checks[].name").chars(1, 63);
    result.at("checks[].exitCode").range(-1_024, 1_024);
    result.at("changedFiles").natural();
    result.at("changedPaths").list(0, 32).each().chars(1, grammar::PATH_BYTES);
    result.at("patch.digest").pattern("^sha256:[0-9a-f]{64}$").chars(71, 71);
    result.at("patch.bytes").natural();
    result.at("steps").natural();
}

fn phase(status: &mut Node<'_>) {
    status
        .rule_on("phase", kept("phase"), "is never removed")
        .rule_on(
            "phase",
            format!("!has(oldSelf.phase) || !(oldSelf.phase in {TERMINAL}) || self.phase == oldSelf.phase"),
            "is terminal (Succeeded, Failed or Cancelled) and never changes again",
        )
        .rule_on(
            "finishedAt",
            format!("has(self.finishedAt) == (has(self.phase) && self.phase in {TERMINAL})"),
            "must be set exactly when phase is terminal (Succeeded, Failed or Cancelled)",
        )
        .rule_on(
            "phase",
            format!("!has(self.phase) || !(self.phase in {TERMINAL}) || !has(self.budget) || self.budget.gate == 'Closed'"),
            "may be terminal only once budget.gate is Closed",
        );
}

/// What belongs to one attempt changes only in the write that raises `attempt`.
fn attempt(status: &mut Node<'_>) {
    status
        .rule_on(
            "attempt",
            "!has(oldSelf.attempt) || (has(self.attempt) && self.attempt >= oldSelf.attempt)",
            "never falls and is never removed",
        )
        .rule_on(
            "attempt",
            format!(
                "!has(oldSelf.phase) || !(oldSelf.phase in {TERMINAL}) || (has(self.attempt) == has(oldSelf.attempt) && (!has(self.attempt) || self.attempt == oldSelf.attempt))"
            ),
            "does not change after a terminal phase",
        );
    for field in ["podRef", "ticketSha256"] {
        status.rule_on(field, format!("!has(self.{field}) || has(self.attempt)"), "needs attempt to be set").rule_on(
            field,
            format!("!has(oldSelf.{field}) || self.attempt > oldSelf.attempt || (has(self.{field}) && self.{field} == oldSelf.{field})"),
            "is set once an attempt; it changes or goes only when attempt rises",
        );
    }
    status
        .rule_on(
            "exchange",
            "!has(self.exchange) || (has(self.attempt) && self.exchange.attempt <= self.attempt)",
            "belongs to an attempt that has begun: exchange.attempt is at most attempt",
        )
        .rule_on(
            "exchange",
            "!has(oldSelf.exchange) || (has(self.exchange) ? self.exchange.attempt > oldSelf.exchange.attempt || ( \
               self.exchange.attempt == oldSelf.exchange.attempt && self.exchange.publicKey == oldSelf.exchange.publicKey && \
               self.exchange.nonce == oldSelf.exchange.nonce && self.exchange.at == oldSelf.exchange.at && \
               has(self.exchange.walls) == has(oldSelf.exchange.walls) && \
               (!has(self.exchange.walls) || self.exchange.walls == oldSelf.exchange.walls) && \
               has(self.exchange.network) == has(oldSelf.exchange.network) && \
               (!has(self.exchange.network) || self.exchange.network == oldSelf.exchange.network)) : self.attempt > oldSelf.attempt)",
            "is written once an attempt; afterwards only compromised may become true",
        )
        .rule_on(
            "exchange",
            "!has(oldSelf.exchange) || !has(self.exchange) || self.exchange.attempt != oldSelf.exchange.attempt || \
             !oldSelf.exchange.compromised || self.exchange.compromised",
            "stays compromised once it is",
        );
}

/// What is written once and then stays.
fn once(status: &mut Node<'_>) {
    for field in ["resolved", "startedAt", "finishedAt", "result", "source", "sourceFailure", "earlier"] {
        status.rule_on(
            field,
            format!("!has(oldSelf.{field}) || (has(self.{field}) && self.{field} == oldSelf.{field})"),
            "is written once and never changes or goes",
        );
    }
    status.rule_on("budget", kept("budget"), "is never removed");
}

fn approval(status: &mut Node<'_>) {
    let mut list = status.at("approvals");
    list.list_by("id", 0, 32).rule("self.filter(a, a.state == 'pending').size() <= 16", "may hold at most 16 pending approvals");
    let mut item = list.each();
    item.at("id").range(1, 1_000_000_000);
    item.at("digest").pattern(SHA256).chars(64, 64);
    grammar::text(&mut item.at("kind"), 1, 64);
    grammar::text(&mut item.at("summary"), 0, 256);
    grammar::text(&mut item.at("decidedBy"), 1, 512);
    grammar::text(&mut item.at("reason"), 0, 256);
    grammar::text(&mut item.at("executionId"), 1, 128);
    item.rule_from_birth("oldSelf.hasValue() || self.state == 'pending'", "an approval is born pending")
        .rule_on(
            "state",
            "self.state == oldSelf.state || (oldSelf.state == 'pending' && self.state in ['allowed', 'denied', 'expired']) || \
             (oldSelf.state == 'allowed' && self.state in ['consumed', 'expired'])",
            "goes from pending to allowed, denied or expired, and from allowed to consumed or expired; nothing else",
        )
        .rule(
            "self.digest == oldSelf.digest && self.kind == oldSelf.kind && self.summary == oldSelf.summary && \
             self.requestedAt == oldSelf.requestedAt && self.expiresAt == oldSelf.expiresAt",
            "what was asked (digest, kind, summary, requestedAt, expiresAt) never changes",
        )
        .rule_on(
            "state",
            "!(self.state in ['allowed', 'denied', 'consumed']) || (has(self.decidedBy) && has(self.decidedAt))",
            "a decision needs decidedBy and decidedAt",
        )
        .rule_on("executionId", "(self.state == 'consumed') == has(self.executionId)", "must be set exactly when state is consumed");
    for field in ["scope", "decidedBy", "decidedAt", "reason", "executionId"] {
        item.rule_on(
            field,
            format!("!has(oldSelf.{field}) || (has(self.{field}) && self.{field} == oldSelf.{field})"),
            "is written once and never changes or goes",
        );
    }

    status.rule_on(
        "waitedSeconds",
        "!has(oldSelf.waitedSeconds) || (has(self.waitedSeconds) && self.waitedSeconds >= oldSelf.waitedSeconds)",
        "never falls and is never removed",
    );
    let counters = ["asked", "allowed", "denied", "expired"];
    let risen: Vec<String> = counters.iter().map(|name| format!("self.approvalTotals.{name} >= oldSelf.approvalTotals.{name}")).collect();
    status.rule_on(
        "approvalTotals",
        format!("!has(oldSelf.approvalTotals) || (has(self.approvalTotals) && {})", risen.join(" && ")),
        "never fall and are never removed",
    );
    status
        .rule_on(
            "nextApprovalId",
            "!has(oldSelf.nextApprovalId) || (has(self.nextApprovalId) && self.nextApprovalId >= oldSelf.nextApprovalId)",
            "never falls and is never removed",
        )
        .rule_on(
            "nextApprovalId",
            format!("size({APPROVALS}) == 0 || (has(self.nextApprovalId) && {APPROVALS}.all(a, a.id < self.nextApprovalId))"),
            "must be above the id of every approval",
        )
        .rule_on(
            "approvals",
            format!("sets.contains({APPROVALS}.map(a, a.id), {OLD_APPROVALS}.filter(o, o.state in ['pending', 'allowed']).map(o, o.id))"),
            "an approval leaves only when it is final (denied, expired or consumed)",
        )
        .rule_on(
            "approvals",
            format!(
                "sets.contains({OLD_APPROVALS}.map(o, o.id), {APPROVALS}.filter(a, has(oldSelf.nextApprovalId) && a.id < oldSelf.nextApprovalId).map(a, a.id))"
            ),
            "a new approval takes an id from nextApprovalId on; no id is used twice",
        );
}

fn kept(field: &str) -> String {
    format!("!has(oldSelf.{field}) || has(self.{field})")
}
