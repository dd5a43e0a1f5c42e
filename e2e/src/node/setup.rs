//! What the platform team sets up before a run: a provider with a key of its own, and a policy that offers its models.

use std::path::Path;

use agentrun_crds::agent_policy::{
    AgentPolicy, AgentPolicySpec, ApprovalPolicy, GitPolicy, OfferedModel, PolicyLimits, RateLimits, SandboxPolicy,
};
use agentrun_crds::model_provider::{
    Caps, Dialect, ModelProvider, ModelProviderSpec, NamespaceSelector, PlainHttp, Price, ProvidedModel, SecretKeyRef, Timeouts,
};
use agentrun_crds::{AgentTemplate, names};
use agentrun_scripted_model::{Script, Turn};
use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::node::v1::{RuntimeClass, Scheduling};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;

use super::{SYSTEM, Story, model};

/// Label of a story's namespace; its provider is open to it alone.
pub const STORY_LABEL: &str = "agentrun.dev/story";

/// The models that a story needs, and what its policy says besides.
pub struct Offer {
    scripts: Vec<(String, Vec<Turn>)>,
    pub limits: PolicyLimits,
    pub sandbox: SandboxPolicy,
    pub approvals: ApprovalPolicy,
    pub git: Option<GitPolicy>,
    pub images: Vec<String>,
    pub harnesses: Vec<String>,
    /// Of the provider.
    pub dialect: Dialect,
    pub default_image: Option<String>,
    pub timeouts: Timeouts,
}

impl Offer {
    /// One model `small` that answers with these turns.
    pub fn new(turns: impl IntoIterator<Item = Turn>) -> Offer {
        Offer {
            scripts: vec![("small".into(), turns.into_iter().collect())],
            limits: PolicyLimits::default(),
            sandbox: SandboxPolicy::default(),
            approvals: ApprovalPolicy::default(),
            git: None,
            images: Vec::new(),
            harnesses: Vec::new(),
            dialect: Dialect::OpenAIChat,
            default_image: None,
            timeouts: Timeouts::default(),
        }
    }

    /// A further model.
    pub fn and(mut self, model: &str, turns: impl IntoIterator<Item = Turn>) -> Offer {
        self.scripts.push((model.into(), turns.into_iter().collect()));
        self
    }
}

impl Story {
    /// A RuntimeClass whose Pods no node takes, for a policy: what the operator makes is real and stays pending.
    pub async fn nowhere(&self) -> Result<String> {
        let class = RuntimeClass {
            metadata: ObjectMeta {
                name: Some(self.namespace.clone()),
                labels: Some([(STORY_LABEL.to_owned(), self.namespace.clone())].into()),
                ..ObjectMeta::default()
            },
            handler: "runc".into(),
            scheduling: Some(Scheduling {
                node_selector: Some([("agentrun.dev/nowhere".to_owned(), "true".to_owned())].into()),
                ..Scheduling::default()
            }),
            ..RuntimeClass::default()
        };
        Api::<RuntimeClass>::all(self.node.client.clone()).create(&PostParams::default(), &class).await?;
        Ok(self.namespace.clone())
    }

    /// Whether the image of this agent was built.
    pub fn has_harness(&self, name: &str) -> bool {
        self.node.image(&format!("harness-{name}")).is_ok()
    }

    /// The same as `offer` for an agent of `harnesses/`: its template gets the story's name, its provider speaks its dialect.
    pub async fn offer_harness(&self, mut offer: Offer, name: &str) -> Result<()> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../harnesses/{name}/template.yaml"));
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let mut template: AgentTemplate = serde_yaml::from_str(&text).with_context(|| format!("reading {}", path.display()))?;
        template.metadata = self.metadata(&self.namespace);
        template.spec.image = Some(self.node.image(&format!("harness-{name}"))?.image.clone());
        offer.harnesses.push(self.namespace.clone());
        offer.dialect = template.spec.dialect;
        Api::<AgentTemplate>::namespaced(self.node.client.clone(), SYSTEM).create(&PostParams::default(), &template).await?;
        self.offer(offer).await
    }

    fn metadata(&self, name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.into()),
            labels: Some([(STORY_LABEL.to_owned(), self.namespace.clone())].into()),
            ..ObjectMeta::default()
        }
    }

    /// Register the scripts; create Secret, ModelProvider and AgentPolicy.
    pub async fn offer(&self, offer: Offer) -> Result<()> {
        let client = &self.node.client;
        let toolchain = self.node.image("toolchain")?.image.clone();
        let (mut provided, mut offered) = (Vec::new(), Vec::new());
        for (name, turns) in offer.scripts {
            let upstream = self.upstream(&name);
            self.model.register(&Script { key: Some(self.key.clone()), ..Script::new(&upstream, turns) }).await?;
            provided.push(ProvidedModel {
                name: upstream.clone(),
                price_per_million: Some(Price { input: "0.50".into(), output: "1.50".into(), cached_input: None, cache_write: None }),
                max_output_tokens: Some(4096),
                output_limit: None,
            });
            offered.push(OfferedModel { name, provider: self.namespace.clone(), model: upstream, fallbacks: Vec::new(), embeddings: None });
        }
        let secret = Secret {
            metadata: self.metadata(&self.namespace),
            string_data: Some([("api-key".to_owned(), self.key.clone())].into()),
            ..Secret::default()
        };
        Api::<Secret>::namespaced(client.clone(), SYSTEM).create(&PostParams::default(), &secret).await?;
        let mut provider = ModelProvider::new(
            &self.namespace,
            ModelProviderSpec {
                dialect: offer.dialect,
                url: model::url(offer.dialect),
                plain_http: PlainHttp::Allowed,
                ca_bundle: None,
                secret_ref: SecretKeyRef { name: self.namespace.clone(), key: "api-key".into() },
                allowed_namespaces: Some(NamespaceSelector { match_labels: [(STORY_LABEL.to_owned(), self.namespace.clone())].into() }),
                models: provided,
                timeouts: offer.timeouts,
                caps: Caps::default(),
            },
        );
        provider.metadata = self.metadata(&self.namespace);
        Api::<ModelProvider>::namespaced(client.clone(), SYSTEM).create(&PostParams::default(), &provider).await?;
        let policy = AgentPolicy::new(
            names::POLICY,
            AgentPolicySpec {
                models: offered,
                images: offer.images,
                default_image: offer.default_image.or(Some(toolchain)),
                harnesses: offer.harnesses,
                checks: None,
                required_checks: Vec::new(),
                limits: offer.limits,
                budgets: Vec::new(),
                rate_limits: RateLimits::default(),
                sandbox: offer.sandbox,
                approvals: offer.approvals,
                git: offer.git,
            },
        );
        Api::<AgentPolicy>::namespaced(client.clone(), &self.namespace).create(&PostParams::default(), &policy).await?;
        Ok(())
    }
}
