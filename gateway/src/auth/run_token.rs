//! Run tokens on the sandbox listener: `Authorization: Bearer ar1.…` (the model route also takes `x-api-key`). The token
//! is verified first, then the run is confirmed by a consistent read; every failure is the same 401.

use std::marker::PhantomData;
use std::sync::Arc;

use agentrun_crds::AgentRun;
use agentrun_crds::budget::Gate;
use agentrun_protocol::token::{Audience, Claims};
use axum::extract::FromRequestParts;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::HeaderMap;
use http::request::Parts;

use crate::app::AppState;
use crate::error::ApiError;
use crate::runs;

/// Which tokens a route takes.
pub trait RunAudience: Send + Sync + 'static {
    /// `None`: any audience.
    const AUDIENCE: Option<Audience>;
}

macro_rules! audiences {
    ($($(#[$doc:meta])* $name:ident $audience:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl RunAudience for $name {
            const AUDIENCE: Option<Audience> = $audience;
        }
    )*};
}

audiences! {
    /// The model route.
    Model Some(Audience::Model);
    /// Job, events, blobs, artifacts, result.
    Events Some(Audience::Events);
    /// Approvals.
    Approvals Some(Audience::Approvals);
    /// Renewal.
    AnyAudience None;
}

/// A run that proved itself by a token of audience `A`, and the run by a consistent read at most two seconds old.
pub struct RunCaller<A: RunAudience> {
    pub claims: Claims,
    pub run: Arc<AgentRun>,
    audience: PhantomData<A>,
}

impl<A: RunAudience> FromRequestParts<AppState> for RunCaller<A> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let token = if A::AUDIENCE == Some(Audience::Model) { model_token(&parts.headers) } else { bearer(&parts.headers) };
        let token = token.ok_or_else(ApiError::inactive_run_token)?;
        let now = state.clock.unix_seconds();
        let ring = state.keys.current();
        let claims = match A::AUDIENCE {
            Some(audience) => ring.verify(token, audience, now),
            None => ring.verify_any(token, now),
        }
        .map_err(|_| ApiError::inactive_run_token())?;
        let uid = run_uid_text(&claims);
        let run = state.runs.confirm_live(&uid).await?;
        check_active(&run, &claims).map_err(|_| ApiError::inactive_run_token())?;
        // What the watch already knows closes earlier than the confirmation's two seconds.
        if let Some(seen) = state.runs.get(&uid) {
            check_active(&seen, &claims)
                .or_else(|inactive| if inactive.is_final() { Err(ApiError::inactive_run_token()) } else { Ok(()) })?;
        }
        Ok(RunCaller { claims, run, audience: PhantomData })
    }
}

/// The run UID of a token, as Kubernetes writes it.
pub fn run_uid_text(claims: &Claims) -> String {
    uuid::Uuid::from_bytes(claims.run_uid).to_string()
}

/// The token of `Authorization: Bearer …`; the scheme is case-insensitive.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(http::header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// The token of a model call, in any header in which a model's client puts its key. Some send two, one of them a stand-in.
fn model_token(headers: &HeaderMap) -> Option<&str> {
    let key = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let candidates = [bearer(headers), key("x-api-key"), key("x-goog-api-key")];
    let mut given = candidates.into_iter().flatten();
    given.clone().find(|token| token.starts_with("ar1.")).or_else(|| given.next())
}

/// Why a well-signed token grants nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Inactive {
    #[error("another attempt is current")]
    Attempt,
    #[error("the attempt has not been exchanged, or by another holder")]
    Holder,
    #[error("the token is bound to another Pod")]
    Pod,
    #[error("a second holder was seen")]
    Compromised,
    #[error("the run has ended")]
    Terminal,
    #[error("the run was asked to end")]
    Cancelled,
    #[error("the budget is closed")]
    Closed,
}

impl Inactive {
    /// Whether no later state of the run can undo it, so that an older view suffices to refuse.
    pub fn is_final(self) -> bool {
        matches!(self, Inactive::Terminal | Inactive::Cancelled | Inactive::Closed | Inactive::Compromised)
    }
}

/// Whether the run, as it stands, honours the token.
pub fn check_active(run: &AgentRun, claims: &Claims) -> Result<(), Inactive> {
    let status = run.status.as_ref().ok_or(Inactive::Holder)?;
    if runs::is_terminal(run) {
        return Err(Inactive::Terminal);
    }
    if status.attempt != Some(i64::from(claims.attempt)) {
        return Err(Inactive::Attempt);
    }
    let exchange = status.exchange.as_ref().filter(|e| e.attempt == i64::from(claims.attempt)).ok_or(Inactive::Holder)?;
    if exchange.compromised {
        return Err(Inactive::Compromised);
    }
    if exchange.nonce != URL_SAFE_NO_PAD.encode(claims.nonce) {
        return Err(Inactive::Holder);
    }
    let pod = status.pod_ref.as_ref().and_then(|pod| uuid::Uuid::parse_str(&pod.uid).ok()).ok_or(Inactive::Pod)?;
    if pod.into_bytes() != claims.pod_uid {
        return Err(Inactive::Pod);
    }
    if run.spec.cancel || run.metadata.deletion_timestamp.is_some() {
        return Err(Inactive::Cancelled);
    }
    if claims.audience == Audience::Model && status.budget.as_ref().is_none_or(|budget| budget.gate != Gate::Open) {
        return Err(Inactive::Closed);
    }
    Ok(())
}
