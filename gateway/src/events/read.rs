//! GET of a run's events by people, as `events` or as `log`. They differ in how long a stream may go on behind the cluster's API
//! server, which cuts a GET of a named object at 60 s unless it is called `log`.

use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::cursor::Wanted;
use super::follow::{Follower, Times};
use super::frames::Form;
use crate::app::AppState;
use crate::auth::{Get, Identity, Person};
use crate::error::ApiError;
use crate::store::Gate;

/// Where the API server would cut: the stream ends before, and says where to resume.
const BEFORE_THE_CUT: Duration = Duration::from_secs(50);

type Parameters = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// `events`.
pub(crate) async fn of_run(
    person: Person<Get>,
    State(state): State<AppState>,
    behind: Option<Extension<Identity>>,
    query: Parameters,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let mut times = Times::default();
    if behind.is_some() {
        times.longest = BEFORE_THE_CUT;
    }
    read(person, state, query, headers, times).await
}

/// `log`.
pub(crate) async fn log_of_run(
    person: Person<Get>,
    State(state): State<AppState>,
    query: Parameters,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    read(person, state, query, headers, Times::default()).await
}

async fn read(person: Person<Get>, state: AppState, query: Parameters, headers: HeaderMap, times: Times) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|_| ApiError::bad_request("invalid_query", "the query string cannot be read").field("query"))?;
    let wanted = Wanted::parse(&query, &headers)?;
    let uid = crate::runs::kept_uid(&person.run).to_owned();
    let place = state.stores.gates.enter(Gate::Follow, &uid)?;
    let mut follower = Follower::new(state.stores.events.clone(), state.clock.clone(), uid, wanted, times);
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
