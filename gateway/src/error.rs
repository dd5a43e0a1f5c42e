//! The gateway's one error type towards clients: `{"error": {"code", "message", "field"?, "type"?}}`. The client's message
//! never carries a secret, a provider's identity or an inner error's text; what went wrong inside goes to the log.

use agentrun_protocol::error::{ERROR_HEADER, ErrorBody, ErrorDetail};
use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode, header};

/// A refusal, ready to be sent.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{status} {code}: {message}")]
pub struct ApiError {
    pub status: StatusCode,
    /// A stable word for programs.
    pub code: &'static str,
    /// A sentence for people: what was wrong, what is allowed.
    pub message: String,
    pub field: Option<String>,
    /// OpenAI's `type`, on model routes only.
    pub kind: Option<&'static str>,
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        ApiError { status, code, message: message.into(), field: None, kind: None, headers: Vec::new() }
    }

    /// 400: the caller's mistake, at a field where there is one.
    pub fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// 409.
    pub fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, message)
    }

    /// 413.
    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// The one answer to every run token that is not good here and now.
    pub fn inactive_run_token() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "inactive_run_token",
            "the run token is missing, expired, for another audience, or its run is no longer active; a live run's own token is needed",
        )
        .kind("invalid_request_error")
    }

    /// 503: a retry later may help.
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message).header(header::RETRY_AFTER, HeaderValue::from_static("1"))
    }

    /// 500; `cause` goes to the log only.
    pub fn internal(cause: impl std::fmt::Display) -> Self {
        tracing::error!(%cause, "internal error");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the gateway failed; its log says why")
    }

    /// The API server did not answer, or not usably; `cause` goes to the log only.
    pub fn api_server(cause: impl std::fmt::Display) -> Self {
        tracing::warn!(%cause, "the API server did not answer usably");
        Self::unavailable("api_server_unavailable", "the run's state could not be confirmed; try again")
    }

    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    #[must_use]
    pub fn kind(mut self, kind: &'static str) -> Self {
        self.kind = Some(kind);
        self
    }

    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The body as it is sent.
    pub fn body(&self) -> ErrorBody {
        ErrorBody {
            error: ErrorDetail {
                code: self.code.into(),
                message: self.message.clone(),
                field: self.field.clone(),
                kind: self.kind.map(Into::into),
            },
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = self.body();
        let mut response = (self.status, Json(&body)).into_response();
        // For the aggregated listener, which says the same in Kubernetes' words.
        response.extensions_mut().insert(body);
        response.headers_mut().insert(HeaderName::from_static(ERROR_HEADER), HeaderValue::from_static(self.code));
        for (name, value) in self.headers {
            response.headers_mut().append(name, value);
        }
        response
    }
}
