//! One model call of an agent, passed to the gateway with the run's token. Bodies stream both ways; only a refusal is read
//! before it is passed on, to learn whether the run is over.

use std::{sync::Arc, time::Duration};

use agentrun_crds::model_provider::Dialect;
use agentrun_protocol::error::{ERROR_HEADER, ErrorBody};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body as _, Incoming};

use super::{
    model_routes,
    port::{Body, refusal, whole},
    trouble::Calls,
};
use crate::gateway::Gateway;

/// Largest request. The gateway's own cap, by provider, is usually smaller.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;
/// Largest refusal.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;
/// One call at most.
const PATIENCE: Duration = Duration::from_secs(3600);

/// The way to the gateway's model routes.
pub struct Forward {
    pub dialect: Dialect,
    pub gateway: Gateway,
    pub calls: Arc<Calls>,
}

impl Forward {
    pub async fn forward(&self, target: String, request: Request<Incoming>) -> Response<Body> {
        if request.body().size_hint().exact().is_some_and(|bytes| bytes > MAX_BODY_BYTES as u64) {
            return refusal(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "the body is too large");
        }
        if model_routes::is_turn(request.method(), &target) && !self.calls.begin() {
            return refusal(StatusCode::FORBIDDEN, "step_limit_reached", "the run has used all of its steps");
        }
        let (parts, body) = request.into_parts();
        let body = reqwest::Body::wrap(Limited::new(body, MAX_BODY_BYTES));
        let token = self.gateway.tokens.model();
        let headers = model_routes::headers(&parts.headers);
        match self.gateway.transport.stream(parts.method, &target, headers, &token, body, PATIENCE).await {
            Ok(answer) => self.answer(answer).await,
            Err(why) => {
                self.calls.refused(502, "", &why);
                refusal(StatusCode::BAD_GATEWAY, "gateway_unreachable", "the gateway did not answer")
            }
        }
    }

    async fn answer(&self, answer: Response<reqwest::Body>) -> Response<Body> {
        let (parts, body) = answer.into_parts();
        let body = if parts.status.is_success() {
            self.calls.answered();
            body.map_err(Into::into).boxed_unsync()
        } else {
            let body = Limited::new(body, MAX_REFUSAL_BYTES).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let (code, message) = said(parts.headers.get(ERROR_HEADER), &body);
            self.calls.refused(parts.status.as_u16(), &code, &message);
            whole(body)
        };
        let mut response = Response::new(body);
        *response.status_mut() = parts.status;
        *response.headers_mut() = parts
            .headers
            .into_iter()
            .filter_map(|(name, value)| Some((name?, value)))
            .filter(|(name, _)| model_routes::answers(name))
            .collect();
        response
    }
}

/// Code and message of a refusal. The body is in the dialect's own form, which need not hold our code; the header does.
fn said(header: Option<&http::HeaderValue>, body: &Bytes) -> (String, String) {
    let code = header.and_then(|value| value.to_str().ok());
    let (in_body, message) = match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => (body.error.code, body.error.message),
        Err(_) => {
            let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
            (String::new(), value["error"]["message"].as_str().unwrap_or("no reason given").to_owned())
        }
    };
    let message = crate::clip::first_chars(&crate::clip::printable(&message), 500);
    (code.map_or(in_body, str::to_owned), message)
}
