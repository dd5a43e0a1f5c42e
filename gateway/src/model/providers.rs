//! The ModelProviders of the gateway's own namespace, from a watch, and their keys, read by name and kept for seconds. The key
//! can be had only by showing a dispatched reservation.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agentrun_crds::model_provider::Dialect;
use agentrun_crds::{ModelProvider, ModelProviderSpec};
use futures::TryStreamExt;
use http::{HeaderName, HeaderValue, header};
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::time::Instant;

use super::provider::{Provider, ProviderError};
use crate::budget::Dispatched;

/// How long a key is kept.
const KEY_TTL: Duration = Duration::from_secs(15);
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// By Secret, entry and header: since when, and the header's value.
type Keys = HashMap<(String, String, HeaderName), (Instant, HeaderValue)>;
type Entry = (ModelProviderSpec, Result<Arc<Provider>, ProviderError>);

/// Cheap to clone.
#[derive(Clone)]
pub struct Providers {
    client: Client,
    namespace: String,
    providers: Arc<Mutex<HashMap<String, Entry>>>,
    keys: Arc<Mutex<Keys>>,
}

/// Why there is no key.
#[derive(Clone, Debug, thiserror::Error)]
pub enum KeyError {
    #[error("Secret {0} does not exist")]
    NoSecret(String),
    #[error("Secret {0} has no entry {1}")]
    NoEntry(String, String),
    #[error("entry {1} of Secret {0} is empty or holds characters that no header can carry")]
    Unusable(String, String),
    #[error("the API server did not answer")]
    Unreadable,
}

impl Providers {
    pub fn new(client: Client, namespace: impl Into<String>) -> Self {
        Providers { client, namespace: namespace.into(), providers: Arc::default(), keys: Arc::default() }
    }

    /// Follow the API server for ever.
    pub async fn run(self) {
        let api: Api<ModelProvider> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
        let mut listed: Vec<String> = Vec::new();
        loop {
            match events.try_next().await {
                Ok(Some(watcher::Event::Init)) => listed.clear(),
                Ok(Some(watcher::Event::InitApply(provider))) => {
                    listed.extend(provider.metadata.name.clone());
                    self.put(provider);
                }
                Ok(Some(watcher::Event::InitDone)) => self.lock().retain(|name, _| listed.contains(name)),
                Ok(Some(watcher::Event::Apply(provider))) => self.put(provider),
                Ok(Some(watcher::Event::Delete(provider))) => {
                    self.lock().remove(provider.metadata.name.as_deref().unwrap_or_default());
                }
                Ok(None) => return,
                Err(error) => tracing::warn!(%error, "the watch of ModelProviders failed; it is resumed"),
            }
        }
    }

    /// Take a provider, as from the watch.
    pub fn put(&self, provider: ModelProvider) {
        let name = provider.metadata.name.unwrap_or_default();
        let spec = provider.spec;
        if self.lock().get(&name).is_some_and(|(before, _)| *before == spec) {
            return; // keep its connections
        }
        let built = Provider::new(&name, &spec).map(Arc::new);
        if let Err(error) = &built {
            tracing::warn!(provider = name, %error, "this ModelProvider cannot be used");
        }
        self.lock().insert(name, (spec, built));
    }

    /// `None`: there is no such provider.
    pub fn get(&self, name: &str) -> Option<Result<Arc<Provider>, ProviderError>> {
        self.lock().get(name).map(|(_, provider)| provider.clone())
    }

    /// The longest time that a call to any of them may take.
    pub fn longest_total(&self) -> Option<Duration> {
        self.lock().values().filter_map(|(_, provider)| Some(provider.as_ref().ok()?.timeouts.total)).max()
    }

    /// The header with the key, for a call that has been dispatched.
    pub(super) async fn key(&self, provider: &Provider, _proof: &Dispatched) -> Result<(HeaderName, HeaderValue), KeyError> {
        let (secret, entry) = (provider.secret.name.clone(), provider.secret.key.clone());
        let (name, scheme) = key_header(provider.dialect);
        let place = (secret.clone(), entry.clone(), name.clone());
        if let Some((since, key)) = self.keys.lock().unwrap_or_else(PoisonError::into_inner).get(&place)
            && since.elapsed() < KEY_TTL
        {
            return Ok((name, key.clone()));
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let read = tokio::time::timeout(READ_TIMEOUT, api.get_opt(&secret)).await.map_err(|_| KeyError::Unreadable)?;
        let found = read.map_err(|_| KeyError::Unreadable)?.ok_or_else(|| KeyError::NoSecret(secret.clone()))?;
        let bytes = found.data.and_then(|mut data| data.remove(&entry)).ok_or_else(|| KeyError::NoEntry(secret.clone(), entry.clone()))?;
        let mut header = zeroize::Zeroizing::new(scheme.to_vec());
        header.extend_from_slice(bytes.0.trim_ascii());
        let unusable = || KeyError::Unusable(secret.clone(), entry.clone());
        let mut key = HeaderValue::from_bytes(&header).map_err(|_| unusable())?;
        if header.len() <= scheme.len() {
            return Err(unusable());
        }
        key.set_sensitive(true);
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.retain(|_, (since, _)| since.elapsed() < KEY_TTL);
        keys.insert(place, (Instant::now(), key.clone()));
        Ok((name, key))
    }

    /// The provider refused the key: read it again next time.
    pub(super) fn forget_key(&self, provider: &Provider) {
        let place = (provider.secret.name.clone(), provider.secret.key.clone(), key_header(provider.dialect).0);
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).remove(&place);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Entry>> {
        self.providers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a dialect wants the key, and what stands before it.
fn key_header(dialect: Dialect) -> (HeaderName, &'static [u8]) {
    match dialect {
        Dialect::OpenAIChat | Dialect::OpenAIResponses | Dialect::OpenAIEmbeddings => (header::AUTHORIZATION, b"Bearer "),
        Dialect::AnthropicMessages => (HeaderName::from_static("x-api-key"), b""),
        Dialect::Gemini => (HeaderName::from_static("x-goog-api-key"), b""),
    }
}
