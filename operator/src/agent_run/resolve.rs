//! From spec, policy and provider to what is frozen into `status.resolved`, or a refusal. Pure.

use std::collections::BTreeMap;

use agentrun_crds::AgentTemplateSpec;
use agentrun_crds::agent_policy::{AgentPolicySpec, OfferedModel};
use agentrun_crds::agent_run::{AgentRunSpec, BudgetSpec, Check};
use agentrun_crds::agent_run_status::{Resolved, ResolvedFallback, ResolvedModel};
use agentrun_crds::approval_rules::argv_admits;
use agentrun_crds::budget::Limit;
use agentrun_crds::conditions::Reason;
use agentrun_crds::model_provider::{Dialect, ModelProviderSpec, ProvidedModel};
use agentrun_crds::quantity;
use sha2::{Digest, Sha256};

use super::spec::{self, Refusal, show};
use super::{approvals, git, harness};

/// Runs of a namespace that may be active at once, where the policy says nothing.
pub const DEFAULT_CONCURRENT_RUNS: i64 = 4;
/// Runs of a namespace that may wait, where the policy says nothing.
pub const DEFAULT_QUEUED: i64 = 200;
const DEFAULT_STEPS: i64 = 50;
const DEFAULT_REQUESTS: i64 = 100;
const DEFAULT_WALL_SECONDS: i64 = 30 * 60;
const DEFAULT_STEPS_CEILING: i64 = 100;
const DEFAULT_WALL_CEILING: i64 = 2 * 3600;
const DEFAULT_STARTUP_SECONDS: i64 = 5 * 60;
const DEFAULT_MAX_OUTPUT_TOKENS: i64 = 4096;

/// Why a run was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAccepted {
    /// It never will be.
    Refused(Refusal),
    /// Something that another manifest of the same apply may bring is missing; refuse if it stays so.
    Missing(Refusal),
}

impl From<Refusal> for NotAccepted {
    fn from(refusal: Refusal) -> Self {
        NotAccepted::Refused(refusal)
    }
}

/// The model that the run names, as the policy offers it.
pub fn offered<'a>(spec: &AgentRunSpec, policy: &'a AgentPolicySpec) -> Result<&'a OfferedModel, Refusal> {
    policy.models.iter().find(|offered| offered.name == spec.model).ok_or_else(|| {
        let names: Vec<&str> = policy.models.iter().map(|offered| offered.name.as_str()).take(16).collect();
        denied("spec.model", format!("{} is not offered", show(&spec.model)), format!("one of {}", names.join(", ")))
    })
}

/// Everything the run may do, frozen.
pub fn resolve(
    spec: &AgentRunSpec,
    policy: &AgentPolicySpec,
    providers: &BTreeMap<String, ModelProviderSpec>,
    template: Option<&AgentTemplateSpec>,
    namespace: &BTreeMap<String, String>,
) -> Result<Resolved, NotAccepted> {
    spec::check(spec)?;
    let offered = offered(spec, policy)?;
    harness::offered(spec, policy)?;
    let checks = checks(spec, policy)?;
    let max_steps = steps(spec, policy)?;
    let wall_time_seconds = wall_time(spec, policy)?;
    let budget = budget(spec, policy)?;
    let approvals = approvals::resolve(spec, policy)?;
    let startup_deadline_seconds = match &policy.limits.startup_deadline {
        Some(text) => quantity::seconds(text).map_err(|e| broken("limits.startupDeadline", e))?.clamp(1, spec::MAX_WALL_SECONDS),
        None => DEFAULT_STARTUP_SECONDS,
    };
    let has_cost_limit = budget.cost_micros.is_some() || policy.budgets.iter().any(|budget| budget.limit.cost.is_some());
    let (model, embeddings) = models(offered, providers, namespace, has_cost_limit)?;
    let spoken = model.dialect.unwrap_or(Dialect::OpenAIChat);
    let harness = harness::resolve(spec, template, spoken, approvals.as_ref())?;
    if harness.is_none() && spoken != Dialect::OpenAIChat {
        return Err(denied(
            "spec.model",
            format!("{} speaks {}, which the built-in agent does not", show(&spec.model), spoken.as_str()),
            "a model whose provider speaks OpenAIChat, or a harness that speaks the model's dialect",
        )
        .into());
    }
    let image = image(spec, policy, template)?;
    Ok(Resolved {
        policy_sha256: policy_sha256(policy),
        model,
        embeddings,
        image,
        harness,
        max_steps,
        wall_time_seconds,
        startup_deadline_seconds,
        budget,
        allowed_paths: spec.allowed_paths.clone(),
        checks,
        host_users: policy.sandbox.host_users,
        network_enforcement: policy.sandbox.network_enforcement,
        approvals,
        git: git::resolve(spec, policy)?,
        runtime_class_name: policy.sandbox.runtime_class_name.clone().filter(|name| !name.is_empty()),
        cpu: policy.sandbox.cpu.clone().unwrap_or_else(|| "1".into()),
        memory: policy.sandbox.memory.clone().unwrap_or_else(|| "1Gi".into()),
        workspace: policy.sandbox.workspace.clone().unwrap_or_else(|| "1Gi".into()),
    })
}

pub(super) fn denied(field: &str, wrong: impl std::fmt::Display, allowed: impl std::fmt::Display) -> Refusal {
    Refusal::new(Reason::PolicyDenied, field, wrong, allowed)
}

pub(super) fn broken(field: &str, error: impl std::fmt::Display) -> Refusal {
    Refusal {
        reason: Reason::PolicyDenied,
        message: format!("AgentPolicy default: spec.{field}: {error}; the platform team must correct it"),
    }
}

fn policy_sha256(policy: &AgentPolicySpec) -> String {
    let bytes = serde_json::to_vec(policy).expect("a policy is plain data");
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The names of the providers that a model is offered through.
pub fn providers(offered: &OfferedModel) -> impl Iterator<Item = &str> {
    let fallbacks = offered.fallbacks.iter().map(|fallback| fallback.provider.as_str());
    let embeddings = offered.embeddings.iter().map(|embeddings| embeddings.provider.as_str());
    [offered.provider.as_str()].into_iter().chain(fallbacks).chain(embeddings)
}

/// The run's model with its fallbacks, and the one for embeddings.
fn models(
    offered: &OfferedModel,
    providers: &BTreeMap<String, ModelProviderSpec>,
    namespace: &BTreeMap<String, String>,
    has_cost_limit: bool,
) -> Result<(ResolvedModel, Option<ResolvedModel>), NotAccepted> {
    let find = |name: &str| {
        providers.get(name).ok_or_else(|| {
            NotAccepted::Missing(denied(
                "spec.model",
                format!("{} is served by the ModelProvider {}, which does not exist", show(&offered.name), show(name)),
                "a model whose provider exists in the gateway's namespace",
            ))
        })
    };
    let resolve = |name: &str, provider: &str, model: &str| -> Result<ResolvedModel, NotAccepted> {
        let wanted =
            OfferedModel { name: name.into(), provider: provider.into(), model: model.into(), fallbacks: vec![], embeddings: None };
        Ok(self::model(&wanted, find(provider)?, namespace, has_cost_limit)?)
    };
    let speaks = |provider: &str, spoken: Option<Dialect>, wanted: Dialect| -> Result<(), NotAccepted> {
        if spoken == Some(wanted) {
            return Ok(());
        }
        let spoken = spoken.map_or("nothing", Dialect::as_str);
        let wrong = format!("{} is also served by the ModelProvider {}, which speaks {spoken}", show(&offered.name), show(provider));
        Err(denied("spec.model", wrong, format!("providers that speak {}", wanted.as_str())).into())
    };
    let mut model = resolve(&offered.name, &offered.provider, &offered.model)?;
    for fallback in &offered.fallbacks {
        let resolved = resolve(&offered.name, &fallback.provider, &fallback.model)?;
        speaks(&fallback.provider, resolved.dialect, model.dialect.unwrap_or(Dialect::OpenAIChat))?;
        model.fallbacks.push(ResolvedFallback {
            provider: resolved.provider,
            model: resolved.model,
            max_output_tokens: resolved.max_output_tokens,
            input_micros_per_million: resolved.input_micros_per_million,
            output_micros_per_million: resolved.output_micros_per_million,
            cached_input_micros_per_million: resolved.cached_input_micros_per_million,
            cache_write_micros_per_million: resolved.cache_write_micros_per_million,
        });
    }
    let embeddings = match &offered.embeddings {
        None => None,
        Some(embeddings) => {
            let resolved = resolve(&embeddings.name, &embeddings.provider, &embeddings.model)?;
            speaks(&embeddings.provider, resolved.dialect, Dialect::OpenAIEmbeddings)?;
            Some(resolved)
        }
    };
    Ok((model, embeddings))
}

fn model(
    offered: &OfferedModel,
    provider: &ModelProviderSpec,
    namespace: &BTreeMap<String, String>,
    has_cost_limit: bool,
) -> Result<ResolvedModel, Refusal> {
    let selected = provider.allowed_namespaces.as_ref().map(|selector| &selector.match_labels);
    if !selected.is_some_and(|wanted| wanted.iter().all(|(key, value)| namespace.get(key) == Some(value))) {
        let wanted: Vec<String> = selected.into_iter().flatten().map(|(key, value)| format!("{key}={value}")).collect();
        let wanted = if wanted.is_empty() { "none".to_owned() } else { wanted.join(", ") };
        return Err(denied(
            "spec.model",
            format!("the ModelProvider {} does not admit this namespace", show(&offered.provider)),
            format!("namespaces with the labels: {wanted}"),
        ));
    }
    let provided: &ProvidedModel = provider.models.iter().find(|model| model.name == offered.model).ok_or_else(|| {
        let names: Vec<&str> = provider.models.iter().map(|model| model.name.as_str()).take(16).collect();
        denied(
            "spec.model",
            format!("the ModelProvider {} has no model {}", show(&offered.provider), show(&offered.model)),
            format!("one of {}", names.join(", ")),
        )
    })?;
    let price = |text: &str| {
        quantity::micros(text).map_err(|e| Refusal {
            reason: Reason::PolicyDenied,
            message: format!("ModelProvider {}: pricePerMillion of {}: {e}", show(&offered.provider), show(&offered.model)),
        })
    };
    let optional = |text: &Option<String>| text.as_deref().map(&price).transpose();
    let (input, output, cached_input, cache_write) = match &provided.price_per_million {
        Some(prices) => {
            let input = price(&prices.input)?;
            let cache_write = match optional(&prices.cache_write)? {
                None if provider.dialect == Dialect::AnthropicMessages => Some(input.saturating_mul(2)),
                given => given,
            };
            (Some(input), Some(price(&prices.output)?), optional(&prices.cached_input)?, cache_write)
        }
        None if has_cost_limit => {
            return Err(denied(
                "spec.limits.budget.cost",
                format!("the model {} has no price, so a cost limit cannot be kept", show(&offered.name)),
                "a model with pricePerMillion, or no cost limit in run and policy",
            ));
        }
        None => (None, None, None, None),
    };
    Ok(ResolvedModel {
        name: offered.name.clone(),
        provider: offered.provider.clone(),
        dialect: Some(provider.dialect),
        model: provided.name.clone(),
        max_output_tokens: provided.max_output_tokens.unwrap_or(DEFAULT_MAX_OUTPUT_TOKENS),
        input_micros_per_million: input,
        output_micros_per_million: output,
        cached_input_micros_per_million: cached_input,
        cache_write_micros_per_million: cache_write,
        fallbacks: Vec::new(),
    })
}

/// The run's own, else the template's, else the policy's.
fn image(spec: &AgentRunSpec, policy: &AgentPolicySpec, template: Option<&AgentTemplateSpec>) -> Result<String, Refusal> {
    let Some(image) = &spec.agent.image else {
        if let Some(image) = template.and_then(|template| template.image.as_ref()) {
            spec::image_reference("AgentTemplate: spec.image", image)?;
            return Ok(image.clone());
        }
        let default = policy.default_image.clone().ok_or_else(|| {
            denied(
                "spec.agent.image",
                "is not set and the policy has no defaultImage",
                format!("one that matches {}", list(&policy.images)),
            )
        })?;
        spec::image_reference("AgentPolicy default: spec.defaultImage", &default)?;
        return Ok(default);
    };
    let admitted = policy.default_image.as_ref() == Some(image)
        || policy.images.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => image.starts_with(prefix),
            None => pattern == image,
        });
    if !admitted {
        return Err(denied(
            "spec.agent.image",
            format!("{} is not allowed", show(image)),
            format!("one that matches {}", list(&policy.images)),
        ));
    }
    Ok(image.clone())
}

fn list(patterns: &[String]) -> String {
    if patterns.is_empty() { "nothing".into() } else { patterns.iter().take(16).cloned().collect::<Vec<_>>().join(", ") }
}

/// The policy's required checks first, then the run's own; the same check named twice counts once.
fn checks(spec: &AgentRunSpec, policy: &AgentPolicySpec) -> Result<Vec<Check>, Refusal> {
    let mut all = policy.required_checks.clone();
    for (at, check) in spec.checks.iter().enumerate() {
        match policy.required_checks.iter().find(|required| required.name == check.name) {
            Some(required) if required.argv == check.argv => continue,
            Some(_) => {
                return Err(denied(
                    &format!("spec.checks[{at}].name"),
                    format!("{} is the name of a check that the policy requires, with another argv", show(&check.name)),
                    "another name",
                ));
            }
            None => {}
        }
        if !policy.checks.as_ref().is_none_or(|patterns| patterns.iter().any(|pattern| argv_admits(pattern, &check.argv))) {
            let patterns: Vec<String> = policy.checks.iter().flatten().take(16).map(|pattern| format!("[{}]", pattern.join(" "))).collect();
            return Err(denied(
                &format!("spec.checks[{at}].argv"),
                format!("{} is not allowed", show(&check.argv.join(" "))),
                if patterns.is_empty() { "no check".into() } else { patterns.join(", ") },
            ));
        }
        all.push(check.clone());
    }
    Ok(all)
}

fn steps(spec: &AgentRunSpec, policy: &AgentPolicySpec) -> Result<i64, Refusal> {
    let ceiling = policy.limits.max_steps.unwrap_or(DEFAULT_STEPS_CEILING);
    ceilinged("spec.limits.maxSteps", spec.limits.max_steps, DEFAULT_STEPS, Some(ceiling))
}

fn wall_time(spec: &AgentRunSpec, policy: &AgentPolicySpec) -> Result<i64, Refusal> {
    let asked = spec.limits.wall_time.as_deref().map(|text| spec::wall_time("spec.limits.wallTime", text)).transpose()?;
    let ceiling = match &policy.limits.wall_time {
        Some(text) => quantity::seconds(text).map_err(|e| broken("limits.wallTime", e))?.min(spec::MAX_WALL_SECONDS),
        None => DEFAULT_WALL_CEILING,
    };
    match asked {
        Some(asked) if asked > ceiling => Err(denied(
            "spec.limits.wallTime",
            format!("{} is above the policy's ceiling", show(spec.limits.wall_time.as_deref().unwrap_or_default())),
            format!("at most {ceiling}s"),
        )),
        Some(asked) => Ok(asked),
        None => Ok(DEFAULT_WALL_SECONDS.min(ceiling)),
    }
}

fn ceilinged(field: &str, asked: Option<i64>, default: i64, ceiling: Option<i64>) -> Result<i64, Refusal> {
    match (asked, ceiling) {
        (Some(asked), Some(ceiling)) if asked > ceiling => {
            Err(denied(field, format!("{asked} is above the policy's ceiling"), format!("at most {ceiling}")))
        }
        (Some(asked), _) => Ok(asked),
        (None, Some(ceiling)) => Ok(default.min(ceiling)),
        (None, None) => Ok(default),
    }
}

/// A dimension that neither run nor policy names is unlimited, but for requests: steps + 2 where the run says how many
/// steps, else 100.
fn budget(spec: &AgentRunSpec, policy: &AgentPolicySpec) -> Result<Limit, Refusal> {
    spec::budget("AgentPolicy default: spec.limits.budget", policy.limits.budget.as_ref())?;
    let none = BudgetSpec::default();
    let asked = spec.limits.budget.as_ref().unwrap_or(&none);
    let ceiling = policy.limits.budget.as_ref().unwrap_or(&none);
    let default = spec.limits.max_steps.map_or(DEFAULT_REQUESTS, |steps| steps.saturating_add(2));
    let requests = ceilinged("spec.limits.budget.requests", asked.requests, default, ceiling.requests)?;
    let tokens = |field: &str, asked: Option<i64>, ceiling: Option<i64>| match asked {
        Some(_) => ceilinged(field, asked, 0, ceiling).map(Some),
        None => Ok(ceiling),
    };
    let input_tokens = tokens("spec.limits.budget.inputTokens", asked.input_tokens, ceiling.input_tokens)?;
    let output_tokens = tokens("spec.limits.budget.outputTokens", asked.output_tokens, ceiling.output_tokens)?;
    let money = |field: &str, text: &Option<String>| text.as_deref().map(|text| spec::money(field, text)).transpose();
    let most = money("AgentPolicy default: spec.limits.budget.cost", &ceiling.cost)?;
    let cost_micros = match (money("spec.limits.budget.cost", &asked.cost)?, most) {
        (Some(cost), Some(most)) if cost > most => {
            return Err(denied(
                "spec.limits.budget.cost",
                format!("{} is above the policy's ceiling", show(asked.cost.as_deref().unwrap_or_default())),
                format!("at most {}", quantity::micros_text(most)),
            ));
        }
        (Some(cost), _) => Some(cost),
        (None, most) => most,
    };
    Ok(Limit { requests, input_tokens, output_tokens, cost_micros })
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
