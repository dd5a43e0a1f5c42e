//! The request: decoded to fixed widths, and signed by the key it presents. Pure. No `Debug` and no serde text in errors, since
//! both would repeat credentials.

use agentrun_crds::network_probe::NetworkProbe;
use agentrun_protocol::exchange::{ExchangeRequest, Wall, signing_input};
use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};

use super::refused;
use crate::error::ApiError;

/// A well-formed request whose signature holds.
pub struct Presented {
    pub ticket_sha256: [u8; 32],
    pub pod_token: String,
    /// base64url, as it stands in status.
    pub public_key: String,
    /// base64url, as it stands in status.
    pub nonce: String,
    pub walls: Vec<Wall>,
    /// By target, each once.
    pub network: Vec<NetworkProbe>,
}

impl Presented {
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let request: ExchangeRequest = serde_json::from_slice(body).map_err(|error| {
            ApiError::bad_request(
                "invalid_exchange",
                format!(
                    "the body must be a JSON object of ticket, podToken, publicKey, nonce, signature, walls and network (line {}, column {})",
                    error.line(),
                    error.column()
                ),
            )
            .field("body")
        })?;
        let ticket: [u8; 32] = fixed(&request.ticket, "ticket")?;
        let public_key: [u8; 32] = fixed(&request.public_key, "publicKey")?;
        let nonce: [u8; 16] = fixed(&request.nonce, "nonce")?;
        let signature: [u8; 64] = fixed(&request.signature, "signature")?;
        if request.pod_token.is_empty() {
            return Err(refused());
        }
        let signed = signing_input(&ticket, &request.pod_token, &public_key, &nonce);
        if UnparsedPublicKey::new(&ED25519, public_key).verify(&signed, &signature).is_err() {
            tracing::warn!("an exchange's signature is wrong");
            return Err(refused());
        }
        Ok(Presented {
            ticket_sha256: Sha256::digest(ticket).into(),
            pod_token: request.pod_token,
            public_key: request.public_key,
            nonce: request.nonce,
            walls: request.walls,
            network: by_target(request.network)?,
        })
    }
}

fn by_target(mut network: Vec<NetworkProbe>) -> Result<Vec<NetworkProbe>, ApiError> {
    network.sort_by_key(|probe| probe.target);
    if network.windows(2).any(|pair| pair[0].target == pair[1].target) {
        return Err(ApiError::bad_request("invalid_exchange", "it names a target twice").field("network"));
    }
    Ok(network)
}

fn fixed<const N: usize>(text: &str, field: &'static str) -> Result<[u8; N], ApiError> {
    let bad =
        || ApiError::bad_request("invalid_exchange", format!("it must be base64url without padding of exactly {N} bytes")).field(field);
    let mut bytes = [0; N];
    match URL_SAFE_NO_PAD.decode_slice(text, &mut bytes) {
        Ok(length) if length == N => Ok(bytes),
        _ => Err(bad()),
    }
}
