//! Rules of `AgentPolicy`: its one name, the bounds of what a namespace may offer, and the defaults of its ceilings.

use super::node::Node;
use super::{agent_policy_status, grammar};
use crate::names;
use crate::period::Period;

pub fn shape(policy: &mut Node<'_>) {
    policy.rule(
        format!("self.metadata.name == '{}'", names::POLICY),
        format!("metadata.name must be '{}': a namespace has one policy, and only that name counts", names::POLICY),
    );
    let spec = &mut policy.at("spec");
    spec.at("models").list_by("name", 1, 64);
    grammar::word(&mut spec.at("models[].name"), 128);
    grammar::object_name(&mut spec.at("models[].provider"));
    grammar::text(&mut spec.at("models[].model"), 1, 256);
    spec.at("models[].fallbacks").list(0, 4);
    for offered in ["models[].fallbacks[]", "models[].embeddings"] {
        grammar::object_name(&mut spec.at(offered).at("provider"));
        grammar::text(&mut spec.at(offered).at("model"), 1, 256);
    }
    grammar::word(&mut spec.at("models[].embeddings.name"), 128);
    spec.at("images").list_set(0, 64);
    grammar::image(&mut spec.at("images[]"), true);
    grammar::image(&mut spec.at("defaultImage"), false);
    grammar::object_name(&mut spec.at("harnesses").list_set(0, 32).each());
    spec.at("checks").list(0, 32);
    grammar::argv(&mut spec.at("checks[]"), 512);
    grammar::checks(&mut spec.at("requiredChecks"));

    let limits = &mut spec.at("limits");
    limits.at("maxSteps").range(1, 2_000).default(100);
    limits.at("concurrentRuns").range(1, 1_000).default(4);
    limits.at("queued").range(0, 10_000).default(200);
    grammar::duration(limits.at("wallTime").default("2h"), 24);
    grammar::duration(limits.at("startupDeadline").default("5m"), 1);
    grammar::budget_spec(&mut limits.at("budget"));

    spec.at("budgets").list_by("period", 0, Period::ALL.len());
    let limit = &mut spec.at("budgets[].limit");
    grammar::period_limit(limit);
    let rates = &mut spec.at("rateLimits");
    rates.at("requestsPerMinutePerRun").range(1, 1_000_000);
    rates.at("requestsPerMinutePerNamespace").range(1, 1_000_000);
    rates.at("maxInFlightPerRun").range(1, 512);

    let approvals = &mut spec.at("approvals");
    grammar::approval_rules(&mut approvals.at("rules"), 32);
    grammar::duration(approvals.at("timeout").default("30m"), 24);
    grammar::duration(approvals.at("maxPause").default("2h"), 24);

    let git = &mut spec.at("git");
    git.at("allow").list(1, 32);
    git.at("allow[].host").chars(1, 259).rule(
        "self.matches(r'^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*(:[1-9][0-9]{0,4})?$')",
        "must be a host in lower case, with a port if it is not the scheme's own: git.example.com or git.example.com:8443",
    );
    git.at("allow[].paths").list_set(1, 64);
    git.at("allow[].paths[]").chars(1, 512).rule(
        r"self.matches(r'^([*][*]|[A-Za-z0-9._~+-]+(/[A-Za-z0-9._~+-]+)*(/[*][*])?)$')",
        "must be a repository (org/shop), a subtree (org/**) or everything (**)",
    );
    grammar::object_name(&mut git.at("allow[].secretRef.name"));
    git.at("maxBytes").default("64Mi").chars(1, 16).rule(
        "self.matches(r'^[1-9][0-9]{0,9}(k|M|G|Ki|Mi|Gi)?$') && !quantity(self).isGreaterThan(quantity('1Gi'))",
        "must be a whole number of bytes with k, M, G, Ki, Mi, Gi or nothing after it, at most 1Gi",
    );
    grammar::duration(git.at("timeout").default("2m"), 1);

    let sandbox = &mut spec.at("sandbox");
    grammar::object_name(&mut sandbox.at("runtimeClassName"));
    grammar::quantity(sandbox.at("cpu").default("1"), "256");
    grammar::quantity(sandbox.at("memory").default("1Gi"), "4Ti");
    grammar::quantity(sandbox.at("workspace").default("1Gi"), "4Ti");

    agent_policy_status::shape(&mut policy.at("status"));
}
