//! TLS: whom clients of ours trust, and the listeners. Their certificate comes from a Secret that the operator writes and rotates; handshakes always use the
//! newest usable one.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use agentrun_crds::names;
use anyhow::{Context, bail};
use hyper_rustls::ConfigBuilderExt;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use rustls::crypto::aws_lc_rs;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::oneshot;

use crate::followed::follow;
use crate::serve::HTTP2;

/// The authorities of a PEM file.
pub fn authorities(pem: &[u8]) -> Result<RootCertStore, &'static str> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|_| "is not PEM")?;
        roots.add(certificate).map_err(|_| "holds a certificate that is not usable")?;
    }
    if roots.is_empty() { Err("holds no certificate") } else { Ok(roots) }
}

/// A client that trusts these authorities.
pub fn trusting(roots: RootCertStore) -> ClientConfig {
    ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
}

/// A client that trusts the authorities of this file.
pub fn trusting_file(path: &Path) -> Result<ClientConfig, String> {
    let pem = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    authorities(&pem).map(trusting).map_err(|why| format!("{} {why}", path.display()))
}

/// A client that trusts the authorities of this machine.
pub fn trusting_machine() -> std::io::Result<ClientConfig> {
    Ok(ClientConfig::builder().with_native_roots()?.with_no_client_auth())
}

/// The certificate in use.
#[derive(Debug)]
pub struct ServingCertificate(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// Wait for the Secret and follow it from then on. One that cannot be used is logged, and the one before is kept.
pub async fn follow_certificate(client: Client, namespace: String) -> anyhow::Result<Arc<ServingCertificate>> {
    let (first, waiting) = oneshot::channel();
    let mut first = Some(first);
    let mut current: Option<Arc<ServingCertificate>> = None;
    tokio::spawn(follow(client, namespace, names::SERVING_SECRET, move |secret: Secret| match (certified_key(&secret), &current) {
        (Ok(key), Some(current)) => {
            *current.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(key);
            tracing::info!("serving certificate taken");
        }
        (Ok(key), None) => {
            let certificate = Arc::new(ServingCertificate(RwLock::new(Arc::new(key))));
            current = Some(certificate.clone());
            if let Some(first) = first.take() {
                let _ = first.send(certificate);
            }
        }
        (Err(error), _) => {
            tracing::error!(error = format!("{error:#}"), "the serving certificate cannot be used; waiting for a better one")
        }
    }));
    waiting.await.context("the watch of the serving certificate has ended")
}

impl ServingCertificate {
    /// A listener whose clients show no certificate.
    pub fn server(self: &Arc<Self>) -> Arc<ServerConfig> {
        finish(ServerConfig::builder().with_no_client_auth().with_cert_resolver(self.clone()))
    }

    /// A listener that asks its clients for a certificate.
    pub fn server_for(self: &Arc<Self>, clients: Arc<dyn ClientCertVerifier>) -> Arc<ServerConfig> {
        finish(ServerConfig::builder().with_client_cert_verifier(clients).with_cert_resolver(self.clone()))
    }
}

fn finish(mut config: ServerConfig) -> Arc<ServerConfig> {
    config.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

fn certified_key(secret: &Secret) -> anyhow::Result<CertifiedKey> {
    let entry = |name: &str| {
        let data = secret.data.as_ref().and_then(|data| data.get(name));
        data.with_context(|| format!("Secret {} has no entry {name}", names::SERVING_SECRET))
    };
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(&entry("tls.crt")?.0).collect::<Result<_, _>>().context("tls.crt is not PEM")?;
    if chain.is_empty() {
        bail!("tls.crt holds no certificate");
    }
    let Ok(key) = PrivateKeyDer::from_pem_slice(&entry("tls.key")?.0) else { bail!("tls.key is not a PEM private key") };
    let Ok(key) = aws_lc_rs::sign::any_supported_type(&key) else { bail!("tls.key is of no supported type") };
    let certified = CertifiedKey::new(chain, key);
    if certified.keys_match().is_err() {
        bail!("tls.crt and tls.key do not belong together");
    }
    Ok(certified)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn secret(certificate: &str, key: &str) -> Secret {
        let data = [("tls.crt", certificate), ("tls.key", key)];
        let data = data.into_iter().map(|(name, text)| (name.to_owned(), ByteString(text.as_bytes().to_vec()))).collect();
        Secret { data: Some(data), ..Secret::default() }
    }

    #[test]
    fn only_a_matching_pair_is_taken() {
        let make = || {
            let key = rcgen::generate_simple_self_signed(vec!["agentrun-gateway.ns.svc".into()]).unwrap();
            (key.cert.pem(), key.signing_key.serialize_pem())
        };
        let (certificate, key) = make();
        let (_, other) = make();
        assert!(certified_key(&secret(&certificate, &key)).is_ok());
        for (certificate, key, message) in [
            (certificate.as_str(), other.as_str(), "do not belong together"),
            ("", key.as_str(), "no certificate"),
            (certificate.as_str(), "", "not a PEM private key"),
        ] {
            let error = certified_key(&secret(certificate, key)).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
            assert!(!error.contains("PRIVATE KEY-----"), "{error}");
        }
        assert!(certified_key(&Secret::default()).is_err());
    }
}
