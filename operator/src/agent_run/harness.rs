//! The command-line agent that a run names: whether the policy offers it, and whether its template fits the run. Pure.

use agentrun_crds::agent_policy::AgentPolicySpec;
use agentrun_crds::agent_run::AgentRunSpec;
use agentrun_crds::agent_run_status::{ResolvedApprovals, ResolvedHarness};
use agentrun_crds::agent_template::{AgentTemplateSpec, Bridge};
use agentrun_crds::approval_rules::RuleDecision;
use agentrun_crds::conditions::Reason;
use agentrun_crds::model_provider::Dialect;

use super::resolve::{NotAccepted, denied};
use super::spec::{Refusal, show};

const FIELD: &str = "spec.agent.harness";

/// Whether the policy lists what the run names.
pub fn offered(spec: &AgentRunSpec, policy: &AgentPolicySpec) -> Result<(), Refusal> {
    match &spec.agent.harness {
        Some(name) if !policy.harnesses.contains(name) => {
            let names: Vec<&str> = policy.harnesses.iter().map(String::as_str).take(16).collect();
            let allowed =
                if names.is_empty() { "none; leave it out for the built-in agent".into() } else { format!("one of {}", names.join(", ")) };
            Err(denied(FIELD, format!("{} is not offered by the policy", show(name)), allowed))
        }
        _ => Ok(()),
    }
}

/// What is frozen of the template.
pub fn resolve(
    spec: &AgentRunSpec,
    template: Option<&AgentTemplateSpec>,
    provider: Dialect,
    approvals: Option<&ResolvedApprovals>,
) -> Result<Option<ResolvedHarness>, NotAccepted> {
    let Some(name) = &spec.agent.harness else { return Ok(None) };
    let template = template.ok_or_else(|| {
        let allowed = "a harness whose template exists in the gateway's namespace";
        NotAccepted::Missing(denied(FIELD, format!("there is no AgentTemplate {}", show(name)), allowed))
    })?;
    template.check().map_err(|wrong| Refusal {
        reason: Reason::PolicyDenied,
        message: format!("AgentTemplate {}: {wrong}; the platform team must correct it", show(name)),
    })?;
    if template.dialect != provider {
        let wrong =
            format!("the provider of {} speaks {provider:?}, the harness {} speaks {:?}", show(&spec.model), show(name), template.dialect);
        return Err(denied("spec.model", wrong, "a model whose provider speaks the harness's dialect").into());
    }
    let needs_a_person =
        approvals.is_some_and(|rules| rules.policy_rules.iter().chain(&rules.run_rules).any(|rule| rule.decision != RuleDecision::Allow));
    if needs_a_person && template.permissions.bridge == Bridge::None {
        let wrong = format!("{} does not ask before it acts, and the approval rules of policy or run ask or deny", show(name));
        return Err(denied(FIELD, wrong, "a harness whose template has a permission bridge, or rules that only allow").into());
    }
    Ok(Some(ResolvedHarness { name: name.clone(), template: AgentTemplateSpec { image: None, ..template.clone() } }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec(harness: Value) -> AgentRunSpec {
        serde_json::from_value(json!({
            "instruction": "Fix it.", "model": "small", "agent": {"harness": harness},
            "source": {"inline": {"files": [{"path": "a.py", "content": "x"}]}},
        }))
        .unwrap()
    }

    fn template(changes: Value) -> Value {
        let mut template = json!({"image": "registry.test/pi:1", "dialect": "AnthropicMessages", "command": ["pi", "$(prompt)"]});
        template.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        template
    }

    fn approvals(decision: &str) -> ResolvedApprovals {
        serde_json::from_value(json!({
            "policyRules": [{"decision": "Allow"}], "runRules": [{"decision": decision}],
            "timeoutSeconds": 60, "maxPauseSeconds": 0, "submitterMayApprove": true,
        }))
        .unwrap()
    }

    #[test]
    fn a_run_may_name_what_the_policy_lists() {
        for (harness, listed, refused) in [
            (Value::Null, json!([]), None),
            (Value::Null, json!(["pi"]), None),
            (json!("pi"), json!(["codex", "pi"]), None),
            (json!("pi"), json!([]), Some(r#""pi" is not offered by the policy; allowed: none; leave it out for the built-in agent"#)),
            (json!("pi"), json!(["codex", "qwen"]), Some(r#""pi" is not offered by the policy; allowed: one of codex, qwen"#)),
        ] {
            let policy: AgentPolicySpec = serde_json::from_value(json!({"models": [], "images": [], "harnesses": listed})).unwrap();
            let outcome = offered(&spec(harness.clone()), &policy);
            let message = outcome.err().map(|refusal| (refusal.reason, refusal.message));
            assert_eq!(message, refused.map(|text| (Reason::PolicyDenied, format!("{FIELD}: {text}"))), "{harness} {listed}");
        }
    }

    #[test]
    fn a_template_is_frozen_if_it_fits_the_run() {
        let hook = json!({"permissions": {"bridge": "Hook", "hook": {"tool": "t", "arguments": "a", "allow": "{}", "deny": "{}"}}});
        // template, what rules decide, what is refused; waits: it may still come
        for (name, given, decision, waits, refused) in [
            ("as it should be", Some(template(json!({}))), None, false, None),
            ("only allowed", Some(template(json!({}))), Some("Allow"), false, None),
            ("not there", None, None, true, Some(r#"there is no AgentTemplate "pi""#)),
            (
                "without a prompt",
                Some(template(json!({"command": ["pi"]}))),
                None,
                false,
                Some(r#"AgentTemplate "pi": spec.command: $(prompt)"#),
            ),
            (
                "another dialect",
                Some(template(json!({"dialect": "Gemini"}))),
                None,
                false,
                Some(r#"speaks AnthropicMessages, the harness "pi" speaks Gemini"#),
            ),
            ("asks nobody", Some(template(json!({}))), Some("Ask"), false, Some("does not ask before it acts")),
            ("denies nothing", Some(template(json!({}))), Some("Deny"), false, Some("does not ask before it acts")),
            ("asks by a hook", Some(template(hook)), Some("Ask"), false, None),
        ] {
            let template: Option<AgentTemplateSpec> = given.map(|value| serde_json::from_value(value).unwrap());
            let rules = decision.map(approvals);
            let outcome = resolve(&spec(json!("pi")), template.as_ref(), Dialect::AnthropicMessages, rules.as_ref());
            match (outcome, refused) {
                (Ok(Some(resolved)), None) => {
                    assert_eq!((resolved.name.as_str(), &resolved.template.image), ("pi", &None), "{name}: the image is the run's own");
                }
                (Err(NotAccepted::Missing(refusal)), Some(text)) if waits => {
                    assert!(refusal.message.contains(text), "{name}: {}", refusal.message)
                }
                (Err(NotAccepted::Refused(refusal)), Some(text)) if !waits => {
                    assert!(refusal.message.contains(text), "{name}: {}", refusal.message)
                }
                (Ok(resolved), _) => panic!("{name}: {resolved:?}"),
                (Err(_), _) => panic!("{name}: refused in another way"),
            }
        }
        assert!(matches!(resolve(&spec(Value::Null), None, Dialect::Gemini, Some(&approvals("Deny"))), Ok(None)), "the built-in agent");
    }
}
