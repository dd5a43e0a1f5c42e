//! Refusals as Kubernetes' clients read them: a `Status`, with our own `error` beside it.

use agentrun_protocol::error::{ErrorBody, ErrorDetail};
use axum::Json;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde_json::{Value, json};

/// Turn the refusals of everything beneath.
pub(super) async fn add(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    let Some(refusal) = answer.extensions_mut().remove::<ErrorBody>() else { return answer };
    let mut status = (answer.status(), Json(of(answer.status(), &refusal.error))).into_response();
    for (name, value) in answer.headers() {
        if name != header::CONTENT_TYPE && name != header::CONTENT_LENGTH {
            status.headers_mut().append(name, value.clone());
        }
    }
    status
}

fn of(code: StatusCode, error: &ErrorDetail) -> Value {
    let mut cause = json!({"reason": error.code, "message": error.message});
    if let Some(field) = &error.field {
        cause["field"] = field.as_str().into();
    }
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code.as_u16(),
        "message": error.message, "reason": reason(code), "details": {"causes": [cause]}, "error": error,
    })
}

/// Kubernetes' word for a class of refusals.
fn reason(code: StatusCode) -> &'static str {
    match code {
        StatusCode::BAD_REQUEST => "BadRequest",
        StatusCode::UNAUTHORIZED => "Unauthorized",
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
        StatusCode::CONFLICT => "Conflict",
        StatusCode::PAYLOAD_TOO_LARGE => "RequestEntityTooLarge",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "UnsupportedMediaType",
        StatusCode::UNPROCESSABLE_ENTITY => "Invalid",
        StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
        StatusCode::INTERNAL_SERVER_ERROR => "InternalError",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
        _ => "Unknown",
    }
}
