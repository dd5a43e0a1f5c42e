//! The exchange: ticket, Pod token and an ephemeral key for the run's tokens, once. A lost answer is asked for again with the
//! same key and nonce.

use std::{sync::Arc, time::Duration};

use agentrun_crds::{conditions::Reason, network_probe::NetworkProbe};
use agentrun_protocol::{
    exchange::{ExchangeRequest, ExchangeResponse, Wall, signing_input},
    routes,
};
use aws_lc_rs::{
    rand,
    signature::{Ed25519KeyPair, KeyPair},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::Method;
use tokio::time::Instant;
use zeroize::Zeroize;

use crate::{
    credentials::Credentials,
    gateway::{Again, Answer, Call, CallError, Gateway, Transport},
    termination::Failed,
    tokens::Tokens,
};

/// How long a gateway that does not answer is asked. The same key is answered again for 60 s.
const PATIENCE: Duration = Duration::from_secs(60);
const CALL_TIMEOUT: Duration = Duration::from_secs(15);

/// Exchange, and how long the tokens live (Unix seconds).
pub async fn exchange(
    transport: &Transport,
    credentials: Credentials,
    walls: Vec<Wall>,
    network: Vec<NetworkProbe>,
) -> Result<(Gateway, i64), Failed> {
    let broken = |what: &str| Failed::new(Reason::SandboxLost, format!("the exchange could not be prepared: {what}"));
    let key = Ed25519KeyPair::generate().map_err(|_| broken("no key could be made"))?;
    let public_key: [u8; 32] = key.public_key().as_ref().try_into().map_err(|_| broken("the key has another length"))?;
    let mut nonce = [0u8; 16];
    rand::fill(&mut nonce).map_err(|_| broken("there is no randomness"))?;
    let signature = key.sign(&signing_input(&credentials.ticket, credentials.pod_token.expose(), &public_key, &nonce));

    let mut request = ExchangeRequest {
        ticket: URL_SAFE_NO_PAD.encode(&*credentials.ticket),
        pod_token: credentials.pod_token.expose().to_owned(),
        public_key: URL_SAFE_NO_PAD.encode(public_key),
        nonce: URL_SAFE_NO_PAD.encode(nonce),
        signature: URL_SAFE_NO_PAD.encode(signature),
        walls,
        network,
    };
    drop(credentials);
    let body = serde_json::to_vec(&request).map_err(|_| broken("the request cannot be written"))?;
    request.ticket.zeroize();
    request.pod_token.zeroize();

    let call = Call {
        method: Method::POST,
        path: routes::EXCHANGE.to_owned(),
        token: None,
        body: body.into(),
        content_type: "application/json",
        timeout: CALL_TIMEOUT,
    };
    let mut again = Again::until(Instant::now() + PATIENCE);
    let answer = loop {
        match transport.call(&call).await.and_then(Answer::success) {
            Err(error) if again.after(&error).await => {}
            other => break other.map_err(failed)?,
        }
    };
    // Serde's errors quote what they read, which is tokens here.
    let response: ExchangeResponse = serde_json::from_slice(&answer)
        .map_err(|_| Failed::new(Reason::SandboxLost, "the gateway's answer to the exchange cannot be read"))?;
    let expires_at = response.expires_at;
    Ok((Gateway { transport: transport.clone(), tokens: Arc::new(Tokens::new(response)) }, expires_at))
}

fn failed(error: CallError) -> Failed {
    let reason = match &error {
        CallError::Unreached(_) | CallError::NoAnswer(_) => Reason::StartupDeadlineExceeded,
        CallError::Refused { .. } if error.is_transient() => Reason::StartupDeadlineExceeded,
        CallError::Refused { code, .. } if code.contains("compromised") => Reason::Compromised,
        CallError::Refused { code, .. } if code == "network_not_enforced" => Reason::NetworkNotEnforced,
        CallError::Refused { code, .. } if code.contains("confinement") || code.contains("wall") => Reason::ConfinementFailed,
        CallError::Refused { .. } => Reason::SandboxLost,
    };
    Failed::new(reason, format!("the exchange failed: {error}"))
}
