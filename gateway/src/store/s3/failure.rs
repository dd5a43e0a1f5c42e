//! Why the object store did not do what was asked.

use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;

use crate::store::StoreError;

/// Most that is read of an error's body.
const MAX_BODY: usize = 16 * 1024;

#[derive(Debug)]
pub(super) enum Failure {
    /// No connection, or no answer in time.
    Unreachable(String),
    /// The certificate is not to be trusted.
    Untrusted(String),
    /// An answer that is none of those expected; `code` is the store's own word.
    Answered { status: StatusCode, code: String },
    /// The file to be sent could not be read.
    File(std::io::Error),
}

impl Failure {
    /// Why a request got no answer. The outer errors may carry the URL, so only the innermost is told.
    pub fn unanswered(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut innermost = error;
        loop {
            // An IO error's source is not what it was made from, but that one's.
            let made_from = innermost.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
            innermost = match (made_from, innermost.source()) {
                (Some(made_from), _) => made_from,
                (None, Some(source)) => source,
                (None, None) if innermost.is::<rustls::Error>() => return Failure::Untrusted(innermost.to_string()),
                (None, None) => return Failure::Unreachable(innermost.to_string()),
            };
        }
    }

    pub async fn answered(response: http::Response<Incoming>) -> Self {
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        Failure::Answered { status, code: code(&String::from_utf8_lossy(&body)).unwrap_or_default() }
    }

    /// Whether the same again may succeed.
    pub fn is_passing(&self) -> bool {
        match self {
            Failure::Unreachable(_) => true,
            Failure::Answered { status, .. } => {
                status.is_server_error() || matches!(*status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
            }
            Failure::Untrusted(_) | Failure::File(_) => false,
        }
    }

    /// For the log.
    pub fn text(&self, bucket: &str) -> String {
        match self {
            Failure::Unreachable(why) => format!("the object store cannot be reached: {why}"),
            Failure::Untrusted(why) => format!("the object store is not trusted; is --s3-ca-file right? {why}"),
            Failure::Answered { status, code } => {
                let hint = match status.as_u16() {
                    301 | 307 | 400 => "; is --s3-region right?",
                    401 | 403 => "; are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY right, and may they use the bucket?",
                    404 => "; is there such a bucket?",
                    _ => "",
                };
                format!("the object store answered {} {code} for bucket {bucket:?}{hint}", status.as_u16())
            }
            Failure::File(error) => format!("an upload's file cannot be read: {error}"),
        }
    }

    pub fn into_store_error(self, bucket: &str) -> StoreError {
        match self {
            Failure::File(error) => error.into(),
            Failure::Answered { status: StatusCode::INSUFFICIENT_STORAGE, .. } => StoreError::Full,
            other => StoreError::Failed(other.text(bucket)),
        }
    }
}

/// The word within `<Code>`.
fn code(body: &str) -> Option<String> {
    let (_, rest) = body.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    (code.len() <= 64 && code.chars().all(|c| c.is_ascii_alphanumeric())).then(|| code.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stores_word_is_taken_and_nothing_else() {
        for (body, expected) in [
            ("<Error><Code>NoSuchBucket</Code><Message>x</Message></Error>", Some("NoSuchBucket")),
            ("<Code>a\nb</Code>", None),
            ("<html>502</html>", None),
            ("", None),
        ] {
            assert_eq!(code(body).as_deref(), expected, "{body}");
        }
    }
}
