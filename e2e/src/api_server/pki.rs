//! Keys and certificates of one test server: a CA, its serving certificate for loopback, the key that signs ServiceAccount
//! tokens, and the authority by which the server shows itself to aggregated APIs.

use std::path::Path;

use anyhow::Result;
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

/// 32 hexadecimal digits that nobody guesses: the public half of a fresh key, hashed.
pub fn random_word() -> String {
    use sha2::Digest;
    let key = KeyPair::generate().expect("a key can be made");
    sha2::Sha256::digest(key.public_key_raw()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
