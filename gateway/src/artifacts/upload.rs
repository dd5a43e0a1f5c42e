//! Uploads by the runner: bytes under their digest, then names for some of them.

use agentrun_protocol::result::{ArtifactRequest, MAX_BLOB_BYTES};
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use http::{HeaderMap, StatusCode, header};

use super::PATCH_NAME;
use crate::app::AppState;
use crate::auth::{Events, RunCaller};
use crate::body::{self, Pieces, invalid};
use crate::error::ApiError;
use crate::store::{Digest, Gate, Origin, RunRef};

/// A naming is small.
const MAX_NAMING_BYTES: usize = 4096;

/// PUT: 204 once it is durable. The content is verified against the digest in the path.
pub(super) async fn blob(
    caller: RunCaller<Events>,
    State(state): State<AppState>,
    digest: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, ApiError> {
    let digest = digest.ok().and_then(|Path(text)| Digest::parse(&text).ok());
    let digest = digest.ok_or_else(|| invalid("digest", "the path must end with sha256: and 64 lower-case hex digits"))?;
    let most = i64::try_from(MAX_BLOB_BYTES).unwrap_or(i64::MAX);
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()).and_then(|text| text.parse::<i64>().ok());
    if announced.is_some_and(|length| length > most) {
        return Err(ApiError::too_large(format!("a blob may have at most {most} bytes")).field("body"));
    }
    let run = RunRef::of(&caller.run);
    let _place = state.stores.gates.enter(Gate::Upload, &run.uid)?;
    let mut upload = state.stores.artifacts.begin(&run, Origin::Sandbox, digest, most).await?;
    let mut pieces = Pieces::of(body);
    while let Some(piece) = pieces.next().await? {
        upload.write(piece).await?;
    }
    upload.finish().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// POST: name a blob of this run.
pub(super) async fn name(caller: RunCaller<Events>, State(state): State<AppState>, body: Body) -> Result<StatusCode, ApiError> {
    let run = RunRef::of(&caller.run);
    let _place = state.stores.gates.enter(Gate::Append, &run.uid)?;
    let (name, digest) = check(&body::read(body, MAX_NAMING_BYTES).await?)?;
    state.stores.artifacts.name(&run, Origin::Sandbox, &name, digest).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn check(body: &[u8]) -> Result<(String, Digest), ApiError> {
    let request: ArtifactRequest = body::object(body)?;
    let digest = Digest::parse(&request.digest).map_err(|error| invalid("digest", error))?;
    let name = request.name;
    let fits = (1..=128).contains(&name.len()) && !name.starts_with('.');
    if !fits || !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
        return Err(invalid("name", "must be 1 to 128 characters of A-Z, a-z, 0-9, '.', '_', '-', not starting with a dot"));
    }
    if name.eq_ignore_ascii_case(PATCH_NAME) {
        return Err(invalid("name", format!("{PATCH_NAME} is the gateway's own; choose another name")));
    }
    Ok((name, digest))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_plain() {
        let digest = Digest::of(b"x").to_string();
        let long = "n".repeat(129);
        for name in [
            "",
            ".",
            "..",
            ".hidden",
            "a/b",
            "a\\b",
            "a b",
            "a\"b",
            "a\nb",
            "ü",
            "\u{202e}x",
            long.as_str(),
            "changes.patch",
            "Changes.PATCH",
        ] {
            let error = check(json!({"name": name, "digest": digest}).to_string().as_bytes()).expect_err(name);
            assert_eq!((error.status.as_u16(), error.field.as_deref()), (422, Some("name")), "{name:?}");
        }
        for name in ["a", "report.json", "A-1_2.tar.gz", &long[..128]] {
            assert!(check(json!({"name": name, "digest": digest}).to_string().as_bytes()).is_ok(), "{name:?}");
        }
        let error = check(json!({"name": "a", "digest": "sha256:x"}).to_string().as_bytes()).expect_err("digest");
        assert_eq!(error.field.as_deref(), Some("digest"));
    }
}
