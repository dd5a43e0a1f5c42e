//! The exchange: one-shot ticket + Pod-bound ServiceAccount token + an ephemeral key, for three audience tokens.

use agentrun_crds::network_probe::NetworkProbe;
use serde::{Deserialize, Serialize};

/// What the runner sends. `Debug` is absent on purpose: it holds two credentials.
#[derive(Serialize, Deserialize, Clone)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExchangeRequest {
    /// base64url (no padding) of the 32 ticket bytes.
    pub ticket: String,
    /// The projected ServiceAccount token, audience `agentrun-gateway-exchange`.
    pub pod_token: String,
    /// base64url of the Ed25519 public key (32 bytes) that the runner made for this attempt.
    pub public_key: String,
    /// base64url of 16 random bytes; every token of the attempt carries it. Repeated unchanged in a retry.
    pub nonce: String,
    /// base64url of the Ed25519 signature over `signing_input(...)`.
    pub signature: String,
    /// Walls that the runner found in place; words from `Wall`.
    pub walls: Vec<Wall>,
    /// What it tried to reach, each target once.
    pub network: Vec<NetworkProbe>,
}

/// What is signed: context, then the ticket's and Pod token's SHA-256, public key and nonce, all fixed width.
pub fn signing_input(ticket: &[u8], pod_token: &str, public_key: &[u8; 32], nonce: &[u8; 16]) -> Vec<u8> {
    use sha2::{Digest, Sha256};
    let mut bytes = b"agentrun-exchange-v1\0".to_vec();
    bytes.extend_from_slice(&Sha256::digest(ticket));
    bytes.extend_from_slice(&Sha256::digest(pod_token.as_bytes()));
    bytes.extend_from_slice(public_key);
    bytes.extend_from_slice(nonce);
    bytes
}

/// A property of the sandbox that the runner checked on itself.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub enum Wall {
    /// Not uid 0.
    NonRoot,
    /// All capability sets are empty.
    NoCapabilities,
    /// `NoNewPrivs: 1`.
    NoNewPrivileges,
    /// `Seccomp: 2`.
    Seccomp,
    /// The root file system is mounted read-only.
    ReadOnlyRoot,
    /// `/proc/self/uid_map` is shifted.
    UserNamespace,
    /// No process of another container is visible.
    OwnProcessNamespace,
}

impl Wall {
    /// As in JSON and in `status.exchange.walls`.
    pub fn as_str(self) -> &'static str {
        match self {
            Wall::NonRoot => "nonRoot",
            Wall::NoCapabilities => "noCapabilities",
            Wall::NoNewPrivileges => "noNewPrivileges",
            Wall::Seccomp => "seccomp",
            Wall::ReadOnlyRoot => "readOnlyRoot",
            Wall::UserNamespace => "userNamespace",
            Wall::OwnProcessNamespace => "ownProcessNamespace",
        }
    }

    /// Walls without which the gateway hands out nothing. `UserNamespace` too, unless the policy says `hostUsers: Shared`.
    pub const REQUIRED: &[Wall] =
        &[Wall::NonRoot, Wall::NoCapabilities, Wall::NoNewPrivileges, Wall::Seccomp, Wall::ReadOnlyRoot, Wall::OwnProcessNamespace];
}

/// Three tokens and when they end. No `Debug`.
#[derive(Serialize, Deserialize, Clone)]
#[serde(rename_all = "camelCase")]
pub struct ExchangeResponse {
    pub model_token: String,
    pub events_token: String,
    pub approvals_token: String,
    /// Unix seconds; renew before.
    pub expires_at: i64,
}

/// A fresh token for the audience of the one presented.
#[derive(Serialize, Deserialize, Clone)]
#[serde(rename_all = "camelCase")]
pub struct RenewResponse {
    pub token: String,
    /// Unix seconds.
    pub expires_at: i64,
}
