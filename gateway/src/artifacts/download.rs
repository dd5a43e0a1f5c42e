//! Downloads by people. What a sandbox made must never run in a browser: it comes as an attachment of a fixed type, with
//! sniffing off and a policy under which a page could do nothing.

use agentrun_protocol::people::{ArtifactList, ArtifactView};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};

use crate::app::AppState;
use crate::auth::{Get, Person};
use crate::error::ApiError;
use crate::runs;
use crate::store::Digest;

/// `{"artifacts": [{name, digest, bytes}]}`, by name.
pub(crate) async fn list(person: Person<Get>, State(state): State<AppState>) -> Result<Json<ArtifactList>, ApiError> {
    let named = state.stores.artifacts.list(runs::kept_uid(&person.run)).await?.into_iter();
    let artifacts = named.map(|artifact| ArtifactView { name: artifact.name, digest: artifact.digest.to_string(), bytes: artifact.bytes });
    Ok(Json(ArtifactList { artifacts: artifacts.collect() }))
}

/// The part of the path that says which artifact.
#[derive(serde::Deserialize)]
pub(crate) struct Which {
    artifact: String,
}

/// A blob that this run refers to, by digest or by name; anything else is 404, whether another run has it or not.
pub(crate) async fn blob(
    person: Person<Get>,
    State(state): State<AppState>,
    Path(Which { artifact }): Path<Which>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let named = state.stores.artifacts.list(runs::kept_uid(&person.run)).await?;
    let (digest, name) = match artifact.strip_prefix("sha256:") {
        Some(_) => {
            let digest = Digest::parse(&artifact)
                .map_err(|error| ApiError::bad_request("invalid_digest", format!("the path's last part {error}")).field("artifact"))?;
            let named = named.into_iter().find(|artifact| artifact.digest == digest);
            (digest, named.map_or_else(|| digest.hex(), |artifact| artifact.name))
        }
        None => {
            let named = named.into_iter().find(|known| known.name == artifact).ok_or_else(|| {
                let artifact = crate::body::shortened(&artifact);
                ApiError::not_found(format!("this run has no artifact {artifact}; `artifacts` lists those that it has")).field("artifact")
            })?;
            (named.digest, named.name)
        }
    };
    send(&state, &person, digest, &name, "application/octet-stream", &headers).await
}

/// The patch of the validated result.
pub(crate) async fn patch(person: Person<Get>, State(state): State<AppState>, headers: HeaderMap) -> Result<Response, ApiError> {
    let no_patch = |message: &str| ApiError::new(StatusCode::NOT_FOUND, "no_patch", message);
    let status = person.run.status.as_ref();
    let result = status.and_then(|status| status.result.as_ref());
    let patch = match (result, status.and_then(|status| status.earlier.as_ref())) {
        (Some(result), _) => &result.patch,
        (None, Some(earlier)) => &earlier.patch,
        (None, None) if runs::is_terminal(&person.run) => {
            return Err(no_patch("the run ended without a result; `kubectl describe agentrun` says why"));
        }
        (None, None) => return Err(no_patch("the run has no result yet; follow its events until `result`")),
    };
    let Some(patch) = patch else { return Err(no_patch("the run's result has no patch: it changed no file, or was not valid")) };
    let digest = Digest::parse(&patch.digest).map_err(|error| ApiError::internal(format!("status.result.patch.digest {error}")))?;
    let name = format!("{}.patch", runs::name(&person.run));
    send(&state, &person, digest, &name, "text/x-diff; charset=utf-8", &headers).await
}

async fn send(
    state: &AppState,
    person: &Person<Get>,
    digest: Digest,
    name: &str,
    content_type: &'static str,
    request: &HeaderMap,
) -> Result<Response, ApiError> {
    let blob = state.stores.artifacts.open(runs::kept_uid(&person.run), digest).await?;
    let blob = blob.ok_or_else(|| {
        ApiError::not_found(format!("this run has no blob {digest}; if it ended long ago, retention deleted it")).field("digest")
    })?;
    let etag = format!("\"{digest}\"");
    let unchanged = request
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|tags| tags.split(',').any(|tag| tag.trim() == etag));
    let mut response = if unchanged { StatusCode::NOT_MODIFIED.into_response() } else { Response::new(Body::from_stream(blob.content)) };
    let headers = response.headers_mut();
    let text = |value: String| HeaderValue::from_str(&value).map_err(ApiError::internal);
    headers.insert(header::ETAG, text(etag)?);
    if !unchanged {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(blob.bytes));
        // Names are of a grammar that needs no quoting.
        headers.insert(header::CONTENT_DISPOSITION, text(format!("attachment; filename=\"{name}\""))?);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'; frame-ancestors 'none'"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    Ok(response)
}
