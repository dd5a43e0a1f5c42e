//! `ModelProvider`: an upstream that speaks one dialect, its models and prices. Lives in the gateway's namespace only.
//! The bounds and rules of its schema stand in `schema/model_provider.rs`.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// An upstream model API. Its key is read by the gateway from a Secret of the same namespace.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[expect(clippy::duplicated_attributes, reason = "columns share their types")]
#[kube(
    group = "agentrun.dev",
    version = "v1alpha1",
    kind = "ModelProvider",
    namespaced,
    category = "agents",
    doc = "An upstream model API, its models and prices.",
    printcolumn(name = "Dialect", type_ = "string", json_path = ".spec.dialect"),
    printcolumn(name = "URL", type_ = "string", json_path = ".spec.url"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ModelProviderSpec {
    /// The wire format.
    pub dialect: Dialect,
    /// Full URL of the dialect's endpoint, such as `https://api.example.com/v1/messages`; for Gemini that of its models, such as
    /// `https://api.example.com/v1beta/models`. https, unless `plainHTTP` is `Allowed`. No credentials, query or fragment.
    pub url: String,
    /// Whether `http://` is accepted, for a model server inside the cluster. Default `Refused`.
    #[serde(default, rename = "plainHTTP")]
    pub plain_http: PlainHttp,
    /// PEM certificates to trust for this URL in place of the public ones.
    pub ca_bundle: Option<String>,
    /// The key, sent in the header that the dialect wants.
    pub secret_ref: SecretKeyRef,
    /// Labels a namespace must carry for its runs to use this provider. Unset: no namespace.
    pub allowed_namespaces: Option<NamespaceSelector>,
    /// The models, with prices.
    pub models: Vec<ProvidedModel>,
    /// Upstream timeouts.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Byte caps of one call.
    #[serde(default)]
    pub caps: Caps,
}

/// A wire format; JSON and streamed.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// OpenAI chat/completions.
    OpenAIChat,
    /// OpenAI Responses.
    OpenAIResponses,
    /// OpenAI embeddings; never streamed.
    OpenAIEmbeddings,
    /// Anthropic Messages, and its counting of tokens.
    AnthropicMessages,
    /// Gemini generateContent, streamGenerateContent and countTokens.
    Gemini,
}

impl Dialect {
    /// The word as it stands in YAML.
    pub fn as_str(self) -> &'static str {
        match self {
            Dialect::OpenAIChat => "OpenAIChat",
            Dialect::OpenAIResponses => "OpenAIResponses",
            Dialect::OpenAIEmbeddings => "OpenAIEmbeddings",
            Dialect::AnthropicMessages => "AnthropicMessages",
            Dialect::Gemini => "Gemini",
        }
    }
}

#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlainHttp {
    #[default]
    Refused,
    Allowed,
}

/// A key of a Secret in the provider's own namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    pub name: String,
    pub key: String,
}

/// All the labels must match; an empty map matches every namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceSelector {
    #[serde(default)]
    pub match_labels: BTreeMap<String, String>,
}

/// One upstream model.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProvidedModel {
    /// The upstream's own name.
    pub name: String,
    /// Prices; a run with a cost limit is refused when unset.
    pub price_per_million: Option<Price>,
    /// Most output tokens of one call; requests are clamped to it. Default 4096.
    pub max_output_tokens: Option<i64>,
    /// The member that bounds the output of an OpenAIChat call which has none. Default `max_tokens`; OpenAI's reasoning models take
    /// `max_completion_tokens` only.
    pub output_limit: Option<OutputLimit>,
}

/// A member of a chat/completions body.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum OutputLimit {
    #[default]
    MaxTokens,
    MaxCompletionTokens,
}

/// Price per million tokens, as decimal strings such as `"0.59"`; at most 6 decimals.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Price {
    pub input: String,
    pub output: String,
    /// Input that the provider read from its cache. Default: as `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<String>,
    /// Input that the provider wrote into its cache, at the dearest that a call may ask for. Default: as `input`, with
    /// AnthropicMessages twice that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<String>,
}

/// Durations such as `5s`, `10m`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// TCP and TLS. Default `5s`.
    pub connect: Option<String>,
    /// Until the response's header. Default `60s`.
    pub first_byte: Option<String>,
    /// Between two chunks of a response. Default `30s`.
    pub idle: Option<String>,
    /// The whole call. Default `10m`.
    pub total: Option<String>,
}

/// Byte caps of one call.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Caps {
    /// Request body. Default 1 MiB.
    pub request_bytes: Option<i64>,
    /// Response body. Default 16 MiB.
    pub response_bytes: Option<i64>,
}
