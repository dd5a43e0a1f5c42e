//! Keys and certificates of one test server: a CA, its serving certificate for loopback, the key that signs ServiceAccount
//! tokens, and the authority by which the server shows itself to aggregated APIs.

use std::path::Path;

use anyhow::{Context, Result};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose};

/// The CA that clients trust.
pub struct Ca {
    pub pem: String,
    pub der: Vec<u8>,
}

/// The common name of the API server's certificate towards aggregated APIs.
pub const FRONT_PROXY: &str = "front-proxy-client";

/// An authority that signs client certificates.
pub struct Clients(CertifiedIssuer<'static, KeyPair>);

impl Clients {
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(rcgen::DnType::CommonName, "agentrun test clients");
        Ok(Clients(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// Certificate and key of a client with this common name, PEM.
    pub fn client(&self, name: &str) -> Result<(String, String)> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &self.0)?.pem(), key.serialize_pem()))
    }
}

/// Write `front-proxy-ca.crt`, `front-proxy.crt` and `front-proxy.key` into the folder.
pub fn write_front_proxy(folder: &Path) -> Result<Clients> {
    let clients = Clients::new()?;
    let (certificate, key) = clients.client(FRONT_PROXY)?;
    std::fs::write(folder.join("front-proxy-ca.crt"), clients.0.pem())?;
    std::fs::write(folder.join("front-proxy.crt"), certificate)?;
    std::fs::write(folder.join("front-proxy.key"), key)?;
    Ok(clients)
}

/// Write `serving.crt`, `serving.key`, `accounts.key` and `accounts.pub` into the folder.
pub fn write(folder: &Path) -> Result<Ca> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params.distinguished_name.push(rcgen::DnType::CommonName, "agentrun test CA");
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;

    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()])?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    std::fs::write(folder.join("serving.crt"), params.signed_by(&key, &ca)?.pem())?;
    std::fs::write(folder.join("serving.key"), key.serialize_pem())?;

    let accounts = KeyPair::generate()?;
    std::fs::write(folder.join("accounts.key"), accounts.serialize_pem())?;
    std::fs::write(folder.join("accounts.pub"), accounts.public_key_pem())?;
    Ok(Ca { pem: ca.pem(), der: ca.der().to_vec() })
}

/// A token of a ServiceAccount as the server itself signs it, of which every time lies `seconds` further back. The key is
/// `accounts.key` of the folder, whose algorithm is ECDSA with P-256 and SHA-256.
pub fn older_token(folder: &Path, token: &str, seconds: i64) -> Result<String> {
    let mut parts = token.split('.');
    let (header, payload) = (parts.next().context("a header")?, parts.next().context("a payload")?);
    let mut claims: serde_json::Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(payload)?)?;
    for time in ["iat", "nbf", "exp"] {
        claims[time] = (claims[time].as_i64().context(time)? - seconds).into();
    }
    let signed = format!("{header}.{}", BASE64_URL_SAFE_NO_PAD.encode(claims.to_string()));
    let key = KeyPair::from_pem(&std::fs::read_to_string(folder.join("accounts.key"))?)?;
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.serialized_der()).context("the accounts' key")?;
    let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).context("signing")?;
    Ok(format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
}

/// 32 hexadecimal digits that nobody guesses: the public half of a fresh key, hashed.
pub fn random_word() -> String {
    use sha2::Digest;
    let key = KeyPair::generate().expect("a key can be made");
    sha2::Sha256::digest(key.public_key_raw()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
