//! The runner's side of the exchange, done by hand, for tests that stand in for a runner or for a thief of its credentials.

use agentrun_crds::network_probe::{NetworkProbe, NetworkTarget, ProbeOutcome};
use agentrun_protocol::exchange::{ExchangeRequest, Wall, signing_input};
use anyhow::{Result, anyhow};
use aws_lc_rs::rand;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// One holder of credentials: a key and a nonce.
pub struct Runner {
    key: Ed25519KeyPair,
    nonce: [u8; 16],
}

impl Runner {
    /// With a fresh key and nonce.
    pub fn new() -> Result<Runner> {
        let mut nonce = [0; 16];
        rand::fill(&mut nonce).map_err(|_| anyhow!("no randomness"))?;
        Ok(Runner { key: Ed25519KeyPair::generate().map_err(|_| anyhow!("no key"))?, nonce })
    }

    /// The signed request, with every wall attested and nothing reached. Always the same for the same credentials.
    pub fn request(&self, ticket: &[u8], pod_token: &str) -> ExchangeRequest {
        let public = self.public_key();
        let signature = self.key.sign(&signing_input(ticket, pod_token, &public, &self.nonce));
        ExchangeRequest {
            ticket: URL_SAFE_NO_PAD.encode(ticket),
            pod_token: pod_token.into(),
            public_key: URL_SAFE_NO_PAD.encode(public),
            nonce: URL_SAFE_NO_PAD.encode(self.nonce),
            signature: URL_SAFE_NO_PAD.encode(signature.as_ref()),
            network: NetworkTarget::ALL.iter().map(|target| NetworkProbe { target: *target, outcome: ProbeOutcome::Held }).collect(),
            walls: Wall::REQUIRED.iter().copied().chain([Wall::UserNamespace]).collect(),
        }
    }

    /// The 32 bytes of the public key.
    pub fn public_key(&self) -> [u8; 32] {
        self.key.public_key().as_ref().try_into().expect("Ed25519 keys have 32 bytes")
    }

    /// The nonce that every token of the attempt carries.
    pub fn nonce(&self) -> [u8; 16] {
        self.nonce
    }
}
