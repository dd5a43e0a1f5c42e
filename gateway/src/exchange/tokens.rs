//! Tokens of an exchange. They follow from what stands in status, so whoever repeats the exchange gets the same ones.

use agentrun_crds::AgentRun;
use agentrun_crds::agent_run_status::Exchange;
use agentrun_protocol::exchange::{ExchangeResponse, RenewResponse};
use agentrun_protocol::token::{Audience, Claims, KeyRing};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::error::ApiError;
use crate::runs;

/// Lifetime of one token.
const LIFETIME_SECONDS: i64 = 15 * 60;
/// After the wall time: for the result, and for the operator to close.
const GRACE_SECONDS: i64 = 60;

/// The three tokens of an exchange.
pub fn mint_all(ring: &KeyRing, run: &AgentRun, exchange: &Exchange) -> Result<ExchangeResponse, ApiError> {
    let claims = claims(run, exchange)?;
    let mint = |audience| ring.mint(&Claims { audience, ..claims });
    Ok(ExchangeResponse {
        model_token: mint(Audience::Model),
        events_token: mint(Audience::Events),
        approvals_token: mint(Audience::Approvals),
        expires_at: claims.expires_at,
    })
}

/// A fresh token like the one presented, which was verified and whose run is live.
pub fn renew(ring: &KeyRing, run: &AgentRun, old: &Claims, now: i64) -> Result<RenewResponse, ApiError> {
    let exchange = run.status.as_ref().and_then(|status| status.exchange.as_ref()).ok_or_else(ApiError::inactive_run_token)?;
    let expires_at = now.saturating_add(LIFETIME_SECONDS).min(end(run, exchange)?);
    if expires_at <= now {
        return Err(ApiError::inactive_run_token());
    }
    Ok(RenewResponse { token: ring.mint(&Claims { issued_at: now, expires_at, ..*old }), expires_at })
}

fn claims(run: &AgentRun, exchange: &Exchange) -> Result<Claims, ApiError> {
    let uid = |text: &str| uuid::Uuid::parse_str(text).map(uuid::Uuid::into_bytes).map_err(ApiError::internal);
    let pod = run.status.as_ref().and_then(|status| status.pod_ref.as_ref()).ok_or_else(ApiError::inactive_run_token)?;
    let nonce = URL_SAFE_NO_PAD.decode(&exchange.nonce).ok().and_then(|nonce| nonce.try_into().ok());
    Ok(Claims {
        audience: Audience::Events,
        run_uid: uid(runs::uid(run))?,
        attempt: u32::try_from(exchange.attempt).map_err(ApiError::internal)?,
        pod_uid: uid(&pod.uid)?,
        issued_at: exchange.at,
        expires_at: exchange.at.saturating_add(LIFETIME_SECONDS).min(end(run, exchange)?),
        nonce: nonce.ok_or_else(|| ApiError::internal("status.exchange.nonce is not 16 bytes"))?,
    })
}

/// No token of the attempt lives longer; the longest that people may pause its wall time is in it.
fn end(run: &AgentRun, exchange: &Exchange) -> Result<i64, ApiError> {
    let resolved = run.status.as_ref().and_then(|status| status.resolved.as_ref()).ok_or_else(ApiError::inactive_run_token)?;
    let longest = resolved.wall_time_seconds.saturating_add(resolved.max_pause_seconds());
    Ok(exchange.at.saturating_add(longest).saturating_add(GRACE_SECONDS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{self, NOW};

    #[test]
    fn tokens_repeat_exactly_and_end_with_the_run() {
        let mut run = fixtures::run();
        let exchange = run.status.clone().unwrap().exchange.unwrap();
        let ring = fixtures::ring();
        let first = mint_all(&ring, &run, &exchange).unwrap();
        let again = mint_all(&ring, &run, &exchange).unwrap();
        assert_eq!(
            (&first.model_token, &first.events_token, &first.approvals_token),
            (&again.model_token, &again.events_token, &again.approvals_token)
        );
        for (token, audience) in
            [(&first.model_token, Audience::Model), (&first.events_token, Audience::Events), (&first.approvals_token, Audience::Approvals)]
        {
            let claims = ring.verify(token, audience, NOW).unwrap();
            assert_eq!(claims, Claims { expires_at: NOW + 240, ..fixtures::claims(audience) });
        }
        let resolved = run.status.as_mut().unwrap().resolved.as_mut().unwrap();
        resolved.approvals = serde_json::from_value(serde_json::json!({
            "timeoutSeconds": 60, "maxPauseSeconds": 100, "submitterMayApprove": true,
        }))
        .unwrap();
        assert_eq!(mint_all(&ring, &run, &exchange).unwrap().expires_at, NOW + 340, "a pause that the policy allows is in it");
        run.status.as_mut().unwrap().resolved.as_mut().unwrap().wall_time_seconds = 3600;
        assert_eq!(mint_all(&ring, &run, &exchange).unwrap().expires_at, NOW + 900);
    }

    #[test]
    fn renewal_keeps_the_audience_and_the_end() {
        let mut run = fixtures::run();
        run.status.as_mut().unwrap().resolved.as_mut().unwrap().wall_time_seconds = 1000;
        let ring = fixtures::ring();
        for (now, expected) in
            [(NOW + 10, Some(NOW + 910)), (NOW + 800, Some(NOW + 1060)), (NOW + 1059, Some(NOW + 1060)), (NOW + 1060, None)]
        {
            let renewed = renew(&ring, &run, &fixtures::claims(Audience::Model), now);
            assert_eq!(renewed.as_ref().ok().map(|r| r.expires_at), expected, "{now}");
            if let Ok(renewed) = renewed {
                assert_eq!(ring.verify(&renewed.token, Audience::Model, now).unwrap().nonce, fixtures::NONCE);
            }
        }
    }
}
