//! Making and reading certificates. Deterministic but for the keys; `now` comes in from outside.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData,
};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use zeroize::Zeroizing;

/// How long before now a certificate is valid already, for clocks that lag.
const SKEW_SECONDS: i64 = 300;

/// A certificate and its key, PEM. Not printed.
#[derive(Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: Zeroizing<String>,
}

/// Life of a certificate in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life(pub i64);

/// What a certificate says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Unix seconds.
    pub not_before: i64,
    pub not_after: i64,
    pub subject: String,
    pub issuer: String,
    pub is_ca: bool,
    pub dns_names: Vec<String>,
    /// SHA-256 of the public key.
    pub key: [u8; 32],
}

impl Facts {
    /// More than a third of the life is left.
    pub fn fresh(&self, now: i64) -> bool {
        self.valid(now) && (self.not_after - now) * 3 > self.not_after - self.not_before
    }

    pub fn valid(&self, now: i64) -> bool {
        (self.not_before..self.not_after).contains(&now)
    }
}

fn dated(params: &mut CertificateParams, now: Timestamp, life: Life) {
    let at = |seconds: i64| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    params.not_before = at(now.as_second() - SKEW_SECONDS);
    params.not_after = at(now.as_second() + life.0);
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::OrganizationName, "AgentRun");
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// A new authority. Its name carries a piece of its key, so that old and new are told apart.
pub fn authority(now: Timestamp, life: Life) -> Result<Pair, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mark: String = Sha256::digest(key.subject_public_key_info()).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let mut params = CertificateParams::default();
    dated(&mut params, now, life);
    params.distinguished_name = named(&format!("AgentRun gateway authority {mark}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let certificate = params.self_signed(&key)?.pem();
    Ok(Pair { certificate, key: Zeroizing::new(key.serialize_pem()) })
}

/// A serving certificate for these names.
pub fn serving(authority: &Pair, dns_names: &[String], now: Timestamp, life: Life) -> Result<Pair, rcgen::Error> {
    let issuer = Issuer::from_ca_cert_pem(&authority.certificate, KeyPair::from_pem(&authority.key)?)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(dns_names.to_vec())?;
    dated(&mut params, now, life);
    params.distinguished_name = named("agentrun-gateway");
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, &issuer)?.pem();
    Ok(Pair { certificate, key: Zeroizing::new(key.serialize_pem()) })
}

/// Read the first certificate of a PEM text, and check that `key` belongs to it. `None` for anything unusable.
pub fn read(pair: &Pair) -> Option<Facts> {
    let facts = read_certificate(&pair.certificate)?;
    let key = KeyPair::from_pem(&pair.key).ok()?;
    let digest: [u8; 32] = Sha256::digest(key.subject_public_key_info()).into();
    (digest == facts.key).then_some(facts)
}

/// Read the first certificate of a PEM text.
pub fn read_certificate(pem: &str) -> Option<Facts> {
    let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    let (_, certificate) = X509Certificate::from_der(&block.contents).ok()?;
    let names = certificate.subject_alternative_name().ok()?.map(|extension| &extension.value.general_names);
    let dns = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    };
    Some(Facts {
        not_before: certificate.validity().not_before.timestamp(),
        not_after: certificate.validity().not_after.timestamp(),
        subject: certificate.subject().to_string(),
        issuer: certificate.issuer().to_string(),
        is_ca: certificate.is_ca(),
        dns_names: names.into_iter().flatten().filter_map(dns).collect(),
        key: Sha256::digest(certificate.public_key().raw).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

    fn verifies(ca: &str, leaf: &str, name: &str, at: i64) -> bool {
        let mut roots = rustls::RootCertStore::empty();
        for der in CertificateDer::pem_slice_iter(ca.as_bytes()) {
            roots.add(der.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let leaf = CertificateDer::from_pem_slice(leaf.as_bytes()).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let at = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(at).unwrap()));
        verifier.verify_server_cert(&leaf, &[], &name, &[], at).is_ok()
    }

    #[test]
    fn a_client_that_trusts_the_authority_accepts_the_gateway() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let ca = authority(now, Life(1000)).unwrap();
        let other = authority(now, Life(1000)).unwrap();
        let names = vec!["agentrun-gateway".to_owned(), "agentrun-gateway.agentrun-system.svc".to_owned()];
        let leaf = serving(&ca, &names, now, Life(500)).unwrap();
        let both = format!("{}{}", other.certificate, ca.certificate);
        for (roots, name, second, fine) in [
            (&ca.certificate, "agentrun-gateway.agentrun-system.svc", 10, true),
            (&both, "agentrun-gateway", 10, true),
            (&other.certificate, "agentrun-gateway", 10, false),
            (&ca.certificate, "elsewhere.svc", 10, false),
            (&ca.certificate, "agentrun-gateway", 600, false),
            (&ca.certificate, "agentrun-gateway", -200, true),
        ] {
            assert_eq!(verifies(roots, &leaf.certificate, name, now.as_second() + second), fine, "{name} {second}");
        }
    }

    #[test]
    fn facts_are_read_back() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let ca = authority(now, Life(900)).unwrap();
        let leaf = serving(&ca, &["a.svc".to_owned()], now, Life(600)).unwrap();
        let (ca_facts, leaf_facts) = (read(&ca).unwrap(), read(&leaf).unwrap());
        assert!(ca_facts.is_ca && !leaf_facts.is_ca);
        assert_eq!(leaf_facts.issuer, ca_facts.subject);
        assert_eq!(leaf_facts.dns_names, ["a.svc"]);
        assert_eq!((leaf_facts.not_before, leaf_facts.not_after), (1_800_000_000 - 300, 1_800_000_600));
        assert!(leaf_facts.fresh(1_800_000_200) && !leaf_facts.fresh(1_800_000_400) && leaf_facts.valid(1_800_000_400));
        assert_eq!(read(&Pair { certificate: leaf.certificate, key: ca.key }), None, "another's key");
        assert_eq!(read_certificate("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), None);
        assert_eq!(read_certificate(""), None);
    }
}
