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
