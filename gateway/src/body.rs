//! Reads request bodies and JSON within bounds of size and time.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::ApiError;

/// Longest silence between two pieces of a body.
pub const IDLE: Duration = Duration::from_secs(10);
/// Longest time for a whole body.
pub const TOTAL: Duration = Duration::from_secs(60);

/// A request body, piece by piece, under `IDLE` and `TOTAL`.
pub struct Pieces {
    stream: axum::body::BodyDataStream,
    until: tokio::time::Instant,
}

impl Pieces {
    pub fn of(body: Body) -> Self {
        Pieces { stream: body.into_data_stream(), until: tokio::time::Instant::now() + TOTAL }
    }

    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let until = self.until.min(tokio::time::Instant::now() + IDLE);
        match tokio::time::timeout_at(until, self.stream.next()).await {
            Ok(Some(Ok(piece))) => Ok(Some(piece)),
            Ok(None) => Ok(None),
            Ok(Some(Err(_))) => Err(ApiError::bad_request("body_incomplete", "the body ended early; nothing was kept").field("body")),
            Err(_) => Err(ApiError::new(
                StatusCode::REQUEST_TIMEOUT,
                "body_too_slow",
                format!("the body came too slowly: at most {} s between two pieces and {} s in all", IDLE.as_secs(), TOTAL.as_secs()),
            )
            .field("body")),
        }
    }
}

/// The whole body, of at most so many bytes.
pub async fn read(body: Body, most: usize) -> Result<Bytes, ApiError> {
    let mut pieces = Pieces::of(body);
    let mut all = BytesMut::new();
    while let Some(piece) = pieces.next().await? {
        if all.len() + piece.len() > most {
            return Err(ApiError::too_large(format!("the body may have at most {most} bytes")).field("body"));
        }
        all.extend_from_slice(&piece);
    }
    Ok(all.freeze())
}

/// A JSON object of a type, read as it stands: a field that stands twice is an error, since readers differ in which they take.
pub fn object<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    if body.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|first| *first != b'{') {
        json(body)?;
        return Err(invalid("body", "it must be a JSON object"));
    }
    serde_json::from_slice(body).map_err(|error| {
        let said = shortened(&error.to_string());
        match error.is_data() {
            true => invalid("body", said),
            false => ApiError::bad_request("invalid_json", format!("the body is not JSON: {said}")).field("body"),
        }
    })
}

/// Any JSON.
pub fn json(body: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(|error| {
        ApiError::bad_request("invalid_json", format!("the body is not JSON: {}", shortened(&error.to_string()))).field("body")
    })
}

/// A typed part of a JSON body.
pub fn typed<T: DeserializeOwned>(value: Value, field: &str) -> Result<T, ApiError> {
    serde_json::from_value(value).map_err(|error| invalid(field, shortened(&error.to_string())))
}

/// 422 at a field.
pub fn invalid(field: impl Into<String>, message: impl std::fmt::Display) -> ApiError {
    let field = field.into();
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_field", format!("{field}: {message}")).field(field)
}

/// Text of others within an error: short, and nothing that a terminal would act on.
pub fn shortened(text: &str) -> String {
    let mut kept: String =
        text.chars().take(256).map(|c| if c.is_control() || agentrun_crds::paths::is_invisible(c) { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(256).is_some() {
        kept.push('…');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_read_as_it_stands() {
        #[derive(serde::Deserialize, Debug, PartialEq)]
        struct One {
            a: i64,
        }
        assert_eq!(object::<One>(b" {\"a\": 1}").unwrap(), One { a: 1 });
        for (body, code) in [
            (r#"{"a": 1, "a": 2}"#, "invalid_field"),
            ("[1]", "invalid_field"),
            ("{}", "invalid_field"),
            (r#"{"a": "x"}"#, "invalid_field"),
            ("[", "invalid_json"),
            ("", "invalid_json"),
            ("{", "invalid_json"),
        ] {
            let error = object::<One>(body.as_bytes()).unwrap_err();
            assert_eq!((error.code, error.field.as_deref()), (code, Some("body")), "{body}: {error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_are_bounded_in_size_and_time() {
        assert_eq!(read(Body::from("1234"), 4).await.expect("fits"), "1234");
        assert_eq!(read(Body::from("12345"), 4).await.expect_err("too large").status, StatusCode::PAYLOAD_TOO_LARGE);
        let silent = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(read(silent, 4).await.expect_err("silent").code, "body_too_slow");
        // A byte every nine seconds is never idle for long, but ends all the same.
        let drip = futures::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(9)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), ()))
        });
        assert_eq!(read(Body::from_stream(drip), 1000).await.expect_err("dripping").code, "body_too_slow");
        let broken = futures::stream::iter([Ok(Bytes::from_static(b"x")), Err(std::io::Error::other("cut"))]);
        assert_eq!(read(Body::from_stream(broken), 1000).await.expect_err("cut").code, "body_incomplete");
    }

    #[test]
    fn errors_carry_no_control_characters() {
        let hostile = format!("{{\"\u{1b}[31m\u{202e}{}\": 1}}", "x".repeat(10_000));
        let error =
            json(hostile.as_bytes()).map(|_| ()).and_then(|()| typed::<u8>(Value::String("\u{1b}]0;\u{7}".into()), "f")).expect_err("bad");
        assert!(error.message.chars().all(|c| !c.is_control()), "{error}");
        assert!(error.message.len() < 1024);
        let deep = "[".repeat(100_000);
        assert_eq!(json(deep.as_bytes()).expect_err("deep").code, "invalid_json");
    }
}
