//! GET of a run's events by people.

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::cursor::Wanted;
use super::follow::Follower;
use super::frames::Form;
use crate::app::AppState;
use crate::auth::{Get, Person};
use crate::error::ApiError;
use crate::store::Gate;

pub(super) async fn read(
    person: Person<Get>,
    State(state): State<AppState>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|_| ApiError::bad_request("invalid_query", "the query string cannot be read").field("query"))?;
    let wanted = Wanted::parse(&query, &headers)?;
    let uid = crate::runs::uid(&person.run).to_owned();
    let place = state.stores.gates.enter(Gate::Follow, &uid)?;
    let mut follower = Follower::new(state.stores.events.clone(), state.clock.clone(), uid, wanted);
    let first = follower.page().await?;
    // To a browser that has seen the end and reconnects, this says: there is nothing more, stop.
    if wanted.form == Form::Sse && first.closed && wanted.after == first.last {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let mut response = Response::new(follower.body(first, place));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(wanted.form.content_type()));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response.map(Body::new))
}
