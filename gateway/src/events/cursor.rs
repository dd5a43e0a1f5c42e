//! What a reader asks for: from where, whether to wait for more, and in which form.

use http::{HeaderMap, header};

use super::frames::Form;
use crate::error::ApiError;

/// A checked request to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Events after this number.
    pub after: i64,
    /// Wait for more until the log's end.
    pub follow: bool,
    pub form: Form,
}

impl Wanted {
    /// Query parameters `after`, `follow`, `stream`; headers `Accept` and `Last-Event-ID`. The header of a reconnecting
    /// browser is newer than its URL, so it goes before `after`.
    pub(super) fn parse(query: &[(String, String)], headers: &HeaderMap) -> Result<Self, ApiError> {
        let (mut after, mut follow, mut stream) = (None, false, false);
        for (name, value) in query {
            match name.as_str() {
                "after" => after = Some(number(value, "after")?),
                "follow" => follow = flag(value, "follow")?,
                "stream" => stream = flag(value, "stream")?,
                other => {
                    let other = crate::body::shortened(other);
                    return Err(ApiError::bad_request(
                        "unknown_parameter",
                        format!("{other} is no parameter; after, follow and stream are"),
                    )
                    .field(other));
                }
            }
        }
        if let Some(id) = headers.get("last-event-id") {
            after = Some(number(id.to_str().unwrap_or_default(), "Last-Event-ID")?);
        }
        let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let sse = accept.contains("text/event-stream") || (stream && !accept.contains("application/x-ndjson"));
        Ok(Wanted { after: after.unwrap_or(0), follow: follow || stream || sse, form: if sse { Form::Sse } else { Form::Ndjson } })
    }
}

/// Digits only: no sign, no space, nothing that could leave a frame.
fn number(text: &str, field: &'static str) -> Result<i64, ApiError> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| digits).ok_or_else(|| {
        ApiError::bad_request("invalid_cursor", format!("{field} must be the number of an event, or 0 for the beginning; digits only"))
            .field(field)
    })
}

fn flag(text: &str, field: &'static str) -> Result<bool, ApiError> {
    match text {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(ApiError::bad_request("invalid_parameter", format!("{field} must be true or false")).field(field)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &[(&str, &str)], headers: &[(&'static str, &'static str)]) -> Result<Wanted, ApiError> {
        let query: Vec<_> = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let headers = headers.iter().map(|(name, value)| (name.parse().expect("name"), http::HeaderValue::from_static(value))).collect();
        Wanted::parse(&query, &headers)
    }

    #[test]
    fn what_is_wanted() {
        use Form::{Ndjson, Sse};
        type Row<'a> = (&'a [(&'a str, &'a str)], &'a [(&'static str, &'static str)], (i64, bool, Form));
        let rows: &[Row] = &[
            (&[], &[], (0, false, Ndjson)),
            (&[("after", "7")], &[], (7, false, Ndjson)),
            (&[("follow", "true"), ("after", "0")], &[("accept", "application/x-ndjson")], (0, true, Ndjson)),
            (&[("stream", "1")], &[], (0, true, Sse)),
            (&[("stream", "1")], &[("accept", "application/x-ndjson")], (0, true, Ndjson)),
            (&[], &[("accept", "text/event-stream")], (0, true, Sse)),
            (&[("after", "3")], &[("accept", "text/event-stream"), ("last-event-id", "9")], (9, true, Sse)),
        ];
        for (query, headers, (after, follow, form)) in rows {
            assert_eq!(
                parse(query, headers).expect("good"),
                Wanted { after: *after, follow: *follow, form: *form },
                "{query:?} {headers:?}"
            );
        }
    }

    #[test]
    fn what_is_malformed_is_named() {
        for value in ["", "-1", "+1", " 1", "1 ", "0x1", "1.0", "9223372036854775808", "٣", "1\n"] {
            assert_eq!(parse(&[("after", value)], &[]).expect_err(value).field.as_deref(), Some("after"));
        }
        for value in ["", "-1", "1,2", "x", "99999999999999999999"] {
            let error = parse(&[], &[("last-event-id", value)]).expect_err(value);
            assert_eq!((error.status.as_u16(), error.field.as_deref()), (400, Some("Last-Event-ID")), "{value}");
        }
        assert_eq!(parse(&[("follow", "yes")], &[]).expect_err("flag").field.as_deref(), Some("follow"));
        assert_eq!(parse(&[("afterr", "1")], &[]).expect_err("unknown").field.as_deref(), Some("afterr"));
    }
}
