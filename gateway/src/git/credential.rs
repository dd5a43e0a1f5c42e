//! The Secret that a policy names for a repository: read by name when it is needed, and not kept.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use rustls::{ClientConfig, RootCertStore};
use zeroize::Zeroizing;

use super::failure::Failure;
use crate::tls;

const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// What a server is shown, and whom it is believed by.
pub(super) struct Credential {
    /// `Authorization`; marked as sensitive.
    pub header: Option<HeaderValue>,
    pub tls: Arc<ClientConfig>,
    /// For messages.
    pub secret: Option<String>,
}

/// Of a Secret of the run's namespace, or without one.
pub(super) async fn read(client: &Client, namespace: &str, secret: Option<&str>) -> Result<Credential, Failure> {
    let Some(name) = secret else { return Ok(Credential { header: None, tls: public()?, secret: None }) };
    let shown = format!("{namespace}/{name}");
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let found = match tokio::time::timeout(READ_TIMEOUT, api.get_opt(name)).await {
        Ok(Ok(Some(found))) => found,
        Ok(Ok(None)) => {
            return Err(Failure::passing(format!("Secret {shown}, which the policy names for this repository, does not exist")));
        }
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
            return Err(Failure::passing(format!(
                "the gateway may not read Secret {shown}; name it in the chart's gateway.gitSecrets, or bind a Role that allows `get` on it"
            )));
        }
        Ok(Err(_)) | Err(_) => return Err(Failure::passing("the API server did not answer for the Secret of this repository")),
    };
    let data = found.data.unwrap_or_default();
    let entry = |key: &str| data.get(key).map(|value| Zeroizing::new(value.0.trim_ascii().to_vec())).filter(|value| !value.is_empty());
    let unusable = |why: &str| Failure::lasting(format!("Secret {shown} {why}"));
    let text = match (entry("bearerToken"), entry("username"), entry("password")) {
        (Some(token), None, None) => Some(Zeroizing::new([b"Bearer ", token.as_slice()].concat())),
        (None, username, Some(password)) => {
            let username = username.unwrap_or_else(|| Zeroizing::new(b"git".to_vec()));
            if username.contains(&b':') {
                return Err(unusable("has a username with a colon"));
            }
            let pair = Zeroizing::new([username.as_slice(), b":", password.as_slice()].concat());
            Some(Zeroizing::new(format!("Basic {}", STANDARD.encode(&*pair)).into_bytes()))
        }
        (None, None, None) => None,
        _ => return Err(unusable("must have username and password, or bearerToken, and not both")),
    };
    let header = match text {
        Some(text) => {
            let mut header = HeaderValue::from_bytes(&text).map_err(|_| unusable("holds characters that no header can carry"))?;
            header.set_sensitive(true);
            Some(header)
        }
        None => None,
    };
    let tls = match data.get("ca.crt") {
        Some(pem) => tls::authorities(&pem.0)
            .map(|roots| http1(tls::trusting(roots)))
            .map_err(|why| unusable(&format!("has a ca.crt that {why}")))?,
        None if header.is_none() => return Err(unusable("has neither password nor bearerToken nor ca.crt")),
        None => public()?,
    };
    Ok(Credential { header, tls, secret: Some(shown) })
}

/// The authorities of this machine's image.
fn public() -> Result<Arc<ClientConfig>, Failure> {
    // Where there are none, plain HTTP still works; TLS then trusts nobody.
    Ok(http1(tls::trusting_machine().unwrap_or_else(|_| tls::trusting(RootCertStore::empty()))))
}

fn http1(mut config: ClientConfig) -> Arc<ClientConfig> {
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}
