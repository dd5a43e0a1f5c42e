//! Rules of approvals from policy and run to what is frozen into `status.resolved.approvals`, or a refusal. Pure.

use agentrun_crds::agent_policy::{AgentPolicySpec, ApprovalPolicy};
use agentrun_crds::agent_run::AgentRunSpec;
use agentrun_crds::agent_run_status::ResolvedApprovals;
use agentrun_crds::approval_rules::{ApprovalRule, RuleDecision};
use agentrun_crds::conditions::Reason;
use agentrun_crds::paths::AllowedPath;
use agentrun_crds::quantity;

use super::spec::{MAX_WALL_SECONDS, Refusal, show};

/// Most rules of a run, and of a policy.
pub const MAX_RUN_RULES: usize = 16;
const MAX_POLICY_RULES: usize = 32;
const MAX_TOOLS: usize = 16;
const MAX_PATHS: usize = 16;
const MAX_ARGV: usize = 32;
const MAX_ARG_CHARS: usize = 256;
const DEFAULT_TIMEOUT_SECONDS: i64 = 30 * 60;
const DEFAULT_MAX_PAUSE_SECONDS: i64 = 2 * 3600;
/// How the API server names a service account that makes a request.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Absent where neither policy nor run says anything about approvals.
pub fn resolve(spec: &AgentRunSpec, policy: &AgentPolicySpec) -> Result<Option<ResolvedApprovals>, Refusal> {
    let of_policy = &policy.approvals;
    if *of_policy == ApprovalPolicy::default() && spec.approvals.rules.is_empty() {
        return Ok(None);
    }
    rules("AgentPolicy default: spec.approvals.rules", &of_policy.rules, MAX_POLICY_RULES, Reason::PolicyDenied)?;
    submitter(spec, of_policy.submitter_may_approve)?;
    let max_pause = seconds("maxPause", of_policy.max_pause.as_deref(), DEFAULT_MAX_PAUSE_SECONDS)?;
    Ok(Some(ResolvedApprovals {
        policy_rules: of_policy.rules.clone(),
        run_rules: spec.approvals.rules.clone(),
        timeout_seconds: seconds("timeout", of_policy.timeout.as_deref(), DEFAULT_TIMEOUT_SECONDS)?,
        max_pause_seconds: if of_policy.pauses_wall_time { max_pause } else { 0 },
        submitter_may_approve: of_policy.submitter_may_approve,
    }))
}

fn seconds(field: &str, text: Option<&str>, default: i64) -> Result<i64, Refusal> {
    let Some(text) = text else { return Ok(default) };
    let found = quantity::seconds(text).map_err(|error| Refusal {
        reason: Reason::PolicyDenied,
        message: format!("AgentPolicy default: spec.approvals.{field}: {error}; the platform team must correct it"),
    })?;
    Ok(found.clamp(1, MAX_WALL_SECONDS))
}

/// Where the submitter may not decide, it must be known which person that is.
fn submitter(spec: &AgentRunSpec, may_approve: bool) -> Result<(), Refusal> {
    if may_approve || spec.submitted_for.is_some() {
        return Ok(());
    }
    let refuse = |wrong: String, allowed: &str| Err(Refusal::new(Reason::PolicyDenied, "spec.submittedFor", wrong, allowed));
    match spec.submitted_by.as_deref() {
        Some(account) if account.starts_with(SERVICE_ACCOUNT) => refuse(
            format!(
                "is not set, the service account {} submits, and the policy wants another person to approve than the submitter",
                show(account)
            ),
            "the name of the person on whose behalf the service account submits",
        ),
        Some(_) => Ok(()),
        None => refuse(
            "is not set, spec.submittedBy neither, and the policy wants another person to approve than the submitter".into(),
            "the submitter's name; the cluster stamps submittedBy where the chart's admission policy is installed",
        ),
    }
}

/// Judge rules by themselves; `field` names the list.
pub fn rules(field: &str, rules: &[ApprovalRule], most: usize, reason: Reason) -> Result<(), Refusal> {
    if rules.len() > most {
        return Err(Refusal::new(reason, field, format!("has {} rules", rules.len()), format!("0 to {most}")));
    }
    for (at, rule) in rules.iter().enumerate() {
        let at = format!("{field}[{at}]");
        let refuse = |member: &str, wrong: String, allowed: &str| Err(Refusal::new(reason, &format!("{at}.{member}"), wrong, allowed));
        if rule.tools.len() > MAX_TOOLS || rule.tools.iter().any(|tool| !word(tool, 64)) {
            return refuse("tools", "is no list of tools".into(), "0 to 16 names of 1 to 64 letters, digits and -._:/");
        }
        if let Some(argv) = &rule.argv {
            let fine = |arg: &String| arg.chars().count() <= MAX_ARG_CHARS && !arg.contains('\0');
            if argv.first().is_none_or(String::is_empty) || argv.len() > MAX_ARGV || !argv.iter().all(fine) {
                return refuse("argv", "is no pattern of a command".into(), "a program and up to 31 arguments of at most 256 characters");
            }
        }
        if rule.paths.len() > MAX_PATHS {
            return refuse("paths", format!("has {} entries", rule.paths.len()), "0 to 16");
        }
        for (number, path) in rule.paths.iter().enumerate() {
            if let Err(error) = AllowedPath::parse(path) {
                return refuse(&format!("paths[{number}]"), format!("{} {error}", show(path)), "\"a/b.py\", \"a/**\" or \"**\"");
            }
        }
    }
    Ok(())
}

/// Judge a run's own rules.
pub fn of_run(spec: &AgentRunSpec) -> Result<(), Refusal> {
    const FIELD: &str = "spec.approvals.rules";
    rules(FIELD, &spec.approvals.rules, MAX_RUN_RULES, Reason::InvalidSpec)?;
    match spec.approvals.rules.iter().position(|rule| rule.decision == RuleDecision::Allow) {
        Some(at) => Err(Refusal::new(
            Reason::InvalidSpec,
            &format!("{FIELD}[{at}].decision"),
            "is Allow",
            "Ask or Deny: a run can only tighten what its policy says",
        )),
        None => Ok(()),
    }
}

/// A name of something outside Kubernetes.
pub fn word(text: &str, most: usize) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"-._:/".contains(&b);
    (1..=most).contains(&text.len()) && text.bytes().all(inner) && text.as_bytes()[0].is_ascii_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn run(approvals: Value, spec: Value) -> Result<Option<ResolvedApprovals>, Refusal> {
        let policy = json!({"models": [], "images": [], "approvals": approvals});
        let mut run = json!({"instruction": "x", "model": "small", "source": {}});
        run.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        resolve(&serde_json::from_value(run).unwrap(), &serde_json::from_value(policy).unwrap())
    }

    #[test]
    fn what_is_frozen() {
        assert_eq!(run(json!({}), json!({})), Ok(None), "nobody says anything");
        let ask = json!([{"tools": ["run_command"], "decision": "Ask"}]);
        // policy, run -> rules of policy and run, timeout, pause, may the submitter
        let rows = [
            (json!({"rules": ask}), json!({}), (1, 0, 1800, 0, true)),
            (json!({}), json!({"approvals": {"rules": ask}}), (0, 1, 1800, 0, true)),
            (json!({"rules": ask, "timeout": "5m", "maxPause": "1h"}), json!({}), (1, 0, 300, 0, true)),
            (json!({"rules": ask, "pausesWallTime": true}), json!({}), (1, 0, 1800, 7200, true)),
            (json!({"rules": ask, "pausesWallTime": true, "maxPause": "1h"}), json!({}), (1, 0, 1800, 3600, true)),
            (json!({"submitterMayApprove": false}), json!({"submittedBy": "anna"}), (0, 0, 1800, 0, false)),
        ];
        for (policy, spec, expected) in rows {
            let found = run(policy.clone(), spec).unwrap().unwrap();
            let (policy_rules, run_rules) = (found.policy_rules.len(), found.run_rules.len());
            let found = (policy_rules, run_rules, found.timeout_seconds, found.max_pause_seconds, found.submitter_may_approve);
            assert_eq!(found, expected, "{policy}");
        }
    }

    #[test]
    fn who_submitted_must_be_a_known_person_where_another_must_approve() {
        let robot = "system:serviceaccount:ci:builder";
        // may the submitter approve, who submitted, for whom -> accepted
        let rows = [
            (true, Some(robot), None, true),
            (true, None, None, true),
            (false, Some("anna"), None, true),
            (false, Some(robot), None, false),
            (false, Some(robot), Some("anna"), true),
            (false, None, None, false),
            (false, None, Some("anna"), true),
        ];
        for (may, by, on_behalf, accepted) in rows {
            let mut spec = json!({});
            if let Some(by) = by {
                spec["submittedBy"] = json!(by);
            }
            if let Some(person) = on_behalf {
                spec["submittedFor"] = json!(person);
            }
            let policy = json!({"submitterMayApprove": may, "rules": [{"decision": "Ask"}]});
            match run(policy, spec) {
                Ok(_) => assert!(accepted, "{may} {by:?} {on_behalf:?}"),
                Err(refusal) => {
                    assert!(!accepted, "{may} {by:?} {on_behalf:?}: {}", refusal.message);
                    assert_eq!(refusal.reason, Reason::PolicyDenied);
                    assert!(refusal.message.starts_with("spec.submittedFor: "), "{}", refusal.message);
                }
            }
        }
    }

    #[test]
    fn bad_rules_are_refused_by_their_field() {
        let many = |n: usize| json!((0..n).map(|_| json!({"decision": "Deny"})).collect::<Vec<_>>());
        for (rules, field) in [
            (json!([{"decision": "Ask"}, {"decision": "Allow"}]), "spec.approvals.rules[1].decision"),
            (many(17), "spec.approvals.rules"),
            (json!([{"tools": ["rm -rf"], "decision": "Ask"}]), "spec.approvals.rules[0].tools"),
            (json!([{"argv": [], "decision": "Ask"}]), "spec.approvals.rules[0].argv"),
            (json!([{"argv": ["", "x"], "decision": "Ask"}]), "spec.approvals.rules[0].argv"),
            (json!([{"argv": ["x".repeat(257)], "decision": "Ask"}]), "spec.approvals.rules[0].argv"),
            (json!([{"paths": ["a", "../b"], "decision": "Ask"}]), "spec.approvals.rules[0].paths[1]"),
        ] {
            let spec = json!({"instruction": "x", "model": "small", "source": {}, "approvals": {"rules": rules}});
            let refusal = of_run(&serde_json::from_value(spec).unwrap()).expect_err(field);
            assert_eq!(refusal.reason, Reason::InvalidSpec, "{field}");
            assert!(refusal.message.starts_with(&format!("{field}: ")), "{field}: {}", refusal.message);
        }
        for (policy, field) in [
            (json!({"rules": many(33)}), "spec.approvals.rules"),
            (json!({"rules": [{"paths": ["/etc"], "decision": "Allow"}]}), "spec.approvals.rules[0].paths[0]"),
            (json!({"timeout": "soon"}), "spec.approvals.timeout"),
            (json!({"maxPause": "-1h"}), "spec.approvals.maxPause"),
        ] {
            let refusal = run(policy, json!({})).expect_err(field);
            assert_eq!(refusal.reason, Reason::PolicyDenied, "{field}");
            assert!(refusal.message.starts_with(&format!("AgentPolicy default: {field}: ")), "{}", refusal.message);
        }
    }
}
