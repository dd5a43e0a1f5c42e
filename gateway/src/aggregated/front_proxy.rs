//! The cluster's front proxy: the API server, which has authenticated somebody and passes the request on with who it is in
//! headers. Those headers are believed from a client certificate of the front proxy's authority and with one of its names, both
//! as the cluster publishes them in a ConfigMap that is followed; from nobody else.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{Context, bail};
use http::{HeaderMap, HeaderValue};
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::auth::Identity;
use crate::error::ApiError;
use crate::followed::follow;
use crate::serve::PeerCertificates;

/// Where every cluster publishes it.
const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "extension-apiserver-authentication";
/// More groups or extra values than anybody has.
const MAX_VALUES: usize = 1024;

/// Whom to believe, as last published. Nobody, as long as nothing usable is. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FrontProxy {
    trust: Arc<RwLock<Option<Arc<Trust>>>>,
    provider: Arc<CryptoProvider>,
}

/// What one version of the ConfigMap says.
#[derive(Debug)]
struct Trust {
    authority: Arc<dyn ClientCertVerifier>,
    /// Common names; empty: every certificate of the authority, as Kubernetes has it.
    names: Vec<String>,
    users: Vec<String>,
    uids: Vec<String>,
    groups: Vec<String>,
    extra_prefixes: Vec<String>,
}

impl Default for FrontProxy {
    fn default() -> Self {
        FrontProxy { trust: Arc::default(), provider: Arc::new(aws_lc_rs::default_provider()) }
    }
}

impl FrontProxy {
    /// Follow the cluster's ConfigMap, for ever. One that cannot be used takes away what the one before gave: an authority that
    /// was withdrawn must not go on to be believed.
    pub async fn follow(self, client: Client) {
        follow(client, NAMESPACE.to_owned(), CONFIG_MAP, |published: ConfigMap| self.take(&published.data.unwrap_or_default())).await;
    }

    fn take(&self, data: &BTreeMap<String, String>) {
        let trust = match Trust::parse(data, self.provider.clone()) {
            Ok(trust) => {
                tracing::info!(names = ?trust.names, "the front proxy's authority was taken");
                Some(Arc::new(trust))
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(
                    error,
                    "ConfigMap {NAMESPACE}/{CONFIG_MAP} names no usable front proxy: the aggregated listener answers nobody"
                );
                None
            }
        };
        *self.trust.write().unwrap_or_else(PoisonError::into_inner) = trust;
    }

    fn trust(&self) -> Option<Arc<Trust>> {
        self.trust.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Who sends a request that came with these certificates and headers. Judged for each request, so that a connection does not
    /// outlive its authority.
    pub(super) fn identify(&self, peer: Option<&PeerCertificates>, headers: &HeaderMap) -> Result<Identity, ApiError> {
        let trust = self.trust().ok_or_else(|| refused("the cluster names no front proxy; the gateway's log says more"))?;
        let chain = peer.map(|peer| &*peer.0).unwrap_or_default();
        let (own, between) = chain.split_first().ok_or_else(|| refused("the connection shows no client certificate"))?;
        if trust.authority.verify_client_cert(own, between, UnixTime::now()).is_err() {
            return Err(refused("the client certificate is not of the front proxy's authority, or not valid now"));
        }
        if !trust.names.is_empty() && !common_name(own).is_some_and(|name| trust.names.contains(&name)) {
            return Err(refused("the client certificate has none of the front proxy's names"));
        }
        trust.user(headers).map(Identity).ok_or_else(|| refused("the front proxy did not say who asks"))
    }
}

/// One answer for all: 401, and the place to go instead.
fn refused(why: &str) -> ApiError {
    ApiError::new(
        http::StatusCode::UNAUTHORIZED,
        "not_the_front_proxy",
        format!("{why}; this listener is for the cluster's API server, people use its aggregated API or the port for people"),
    )
}

impl Trust {
    fn parse(data: &BTreeMap<String, String>, provider: Arc<CryptoProvider>) -> anyhow::Result<Trust> {
        let pem = data.get("requestheader-client-ca-file").context("requestheader-client-ca-file is missing")?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            roots.add(certificate.context("requestheader-client-ca-file is not PEM")?).context("requestheader-client-ca-file")?;
        }
        if roots.is_empty() {
            bail!("requestheader-client-ca-file holds no certificate");
        }
        let list = |key: &str| -> anyhow::Result<Vec<String>> {
            data.get(key).map_or(Ok(Vec::new()), |text| serde_json::from_str(text).with_context(|| format!("{key} is no list of strings")))
        };
        let lower = |list: Vec<String>| list.into_iter().map(|name| name.to_ascii_lowercase()).filter(|name| !name.is_empty()).collect();
        let trust = Trust {
            authority: WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?,
            names: list("requestheader-allowed-names")?,
            users: lower(list("requestheader-username-headers")?),
            uids: lower(list("requestheader-uid-headers")?),
            groups: lower(list("requestheader-group-headers")?),
            extra_prefixes: lower(list("requestheader-extra-headers-prefix")?),
        };
        if trust.users.is_empty() {
            bail!("requestheader-username-headers names no header");
        }
        Ok(trust)
    }

    /// `None` without a user name.
    fn user(&self, headers: &HeaderMap) -> Option<UserInfo> {
        // The API server sends names as they are, in UTF-8.
        let text = |value: &HeaderValue| String::from_utf8(value.as_bytes().to_vec()).ok();
        let first = |names: &[String]| {
            let value = text(names.iter().find_map(|name| headers.get(name.as_str()))?)?;
            (!value.is_empty()).then_some(value)
        };
        let username = first(&self.users)?;
        let mut groups = Vec::new();
        for value in self.groups.iter().flat_map(|name| headers.get_all(name.as_str())).take(MAX_VALUES) {
            groups.push(text(value)?);
        }
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in headers.iter().take(MAX_VALUES) {
            let Some(key) = self.extra_prefixes.iter().find_map(|prefix| name.as_str().strip_prefix(prefix.as_str())) else { continue };
            extra.entry(percent_decoded(key)?).or_default().push(text(value)?);
        }
        Some(UserInfo {
            username: Some(username),
            uid: first(&self.uids),
            groups: (!groups.is_empty()).then_some(groups),
            extra: (!extra.is_empty()).then_some(extra),
        })
    }
}

/// The common name of a certificate's subject.
fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.to_owned())
}

/// Keys of extra values come percent-encoded, since they may hold what a header's name may not.
fn percent_decoded(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&first, others)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(others.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &others[2..];
        } else {
            bytes.push(first);
            rest = others;
        }
    }
    String::from_utf8(bytes).ok()
}

/// For handshakes: a certificate that is shown must be good; that one is shown at all is asked of each request, where the answer
/// can say why.
impl ClientCertVerifier for FrontProxy {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        match self.trust() {
            Some(trust) => trust.authority.verify_client_cert(own, between, now),
            None => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

    use super::*;

    fn authority() -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn client(name: &str, authority: &CertifiedIssuer<'static, KeyPair>, edit: impl FnOnce(&mut CertificateParams)) -> PeerCertificates {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        edit(&mut params);
        let certificate = params.signed_by(&KeyPair::generate().unwrap(), authority).unwrap();
        PeerCertificates([certificate.der().clone()].into())
    }

    fn published(authority: &CertifiedIssuer<'static, KeyPair>, names: &str) -> BTreeMap<String, String> {
        [
            ("requestheader-client-ca-file", authority.pem().as_str()),
            ("requestheader-allowed-names", names),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#),
            ("requestheader-uid-headers", r#"["X-Remote-Uid"]"#),
            ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
            ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn names_are_in_utf8() {
        let ours = authority();
        let proxy = client("front-proxy-client", &ours, |_| ());
        let front = FrontProxy::default();
        front.take(&published(&ours, "[]"));
        let with = |user: &[u8], group: &[u8]| {
            let pairs = [("x-remote-user", user), ("x-remote-group", group)];
            pairs.into_iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_bytes(value).unwrap())).collect::<HeaderMap>()
        };
        let crate::auth::Identity(user) =
            front.identify(Some(&proxy), &with("jörg@example.com".as_bytes(), "gruppe-ö".as_bytes())).unwrap();
        assert_eq!((user.username.as_deref(), user.groups), (Some("jörg@example.com"), Some(vec!["gruppe-ö".to_owned()])));
        assert!(front.identify(Some(&proxy), &with(b"j\xf6rg", b"g")).is_err(), "Latin-1 is no name");
        assert!(front.identify(Some(&proxy), &with(b"alice", b"\xff")).is_err());
    }

    #[test]
    fn only_the_front_proxy_is_believed() {
        let (ours, other) = (authority(), authority());
        let says_alice = headers(&[("x-remote-user", "alice")]);
        let proxy = client("front-proxy-client", &ours, |_| ());
        let expired = client("front-proxy-client", &ours, |params| params.not_after = rcgen::date_time_ymd(2001, 1, 1));
        let server = client("front-proxy-client", &ours, |params| {
            params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
        });
        let named = r#"["front-proxy-client","another"]"#;
        let rows: Vec<(&str, &str, Option<&PeerCertificates>, &HeaderMap, bool)> = vec![
            ("good", named, Some(&proxy), &says_alice, true),
            ("any name will do", "[]", Some(&proxy), &says_alice, true),
            ("another name", r#"["somebody"]"#, Some(&proxy), &says_alice, false),
            ("no certificate", named, None, &says_alice, false),
            ("expired", named, Some(&expired), &says_alice, false),
            ("for servers", named, Some(&server), &says_alice, false),
        ];
        let front = FrontProxy::default();
        assert!(front.identify(Some(&proxy), &says_alice).is_err(), "nobody is believed before the cluster has said whom");
        for (name, names, peer, headers, expected) in rows {
            front.take(&published(&ours, names));
            assert_eq!(front.identify(peer, headers).is_ok(), expected, "{name}");
        }
        front.take(&published(&ours, named));
        assert!(front.identify(Some(&proxy), &HeaderMap::new()).is_err(), "nobody named");
        assert!(front.identify(Some(&proxy), &headers(&[("x-remote-user", "")])).is_err(), "an empty name");
        let foreign = client("front-proxy-client", &other, |_| ());
        assert!(front.identify(Some(&foreign), &says_alice).is_err(), "another authority");
        // Rotation: the new authority counts at once, and the old one no longer, also on connections that stand.
        front.take(&published(&other, named));
        assert!(front.identify(Some(&foreign), &says_alice).is_ok() && front.identify(Some(&proxy), &says_alice).is_err());
        // What cannot be used is nobody's.
        for (key, value) in [
            ("requestheader-client-ca-file", "x"),
            ("requestheader-username-headers", "[]"),
            ("requestheader-allowed-names", "front-proxy-client"),
        ] {
            let mut data = published(&other, named);
            data.insert(key.into(), value.into());
            front.take(&data);
            assert!(front.identify(Some(&foreign), &says_alice).is_err(), "{key}");
        }
    }

    #[test]
    fn a_user_is_read_from_the_published_headers() {
        let front = FrontProxy::default();
        let trust = Trust::parse(&published(&authority(), "[]"), front.provider.clone()).unwrap();
        let mut all = headers(&[
            ("x-remote-user", "system:serviceaccount:a:b"),
            ("x-remote-uid", "u-1"),
            ("x-remote-extra-example.com%2fteam", "one"),
            ("x-remote-extra-scopes", "two"),
            ("x-other", "no"),
        ]);
        for group in ["g1", "g2"] {
            all.append("x-remote-group", HeaderValue::from_static(group));
        }
        let user = trust.user(&all).unwrap();
        assert_eq!((user.username.as_deref(), user.uid.as_deref()), (Some("system:serviceaccount:a:b"), Some("u-1")));
        assert_eq!(user.groups, Some(vec!["g1".to_owned(), "g2".to_owned()]));
        let extra: Vec<_> = user.extra.unwrap().into_iter().collect();
        assert_eq!(extra, [("example.com/team".to_owned(), vec!["one".to_owned()]), ("scopes".to_owned(), vec!["two".to_owned()])]);
        assert!(trust.user(&headers(&[("x-remote-user", "a"), ("x-remote-extra-%zz", "x")])).is_none(), "a broken key");
    }
}
