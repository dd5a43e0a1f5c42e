//! Runs as people and their programs see them: submit, list, look at one, cancel.

use agentrun_crds::conditions::types;
use agentrun_crds::{AgentRun, GROUP, names};
use agentrun_protocol::people::{RunLinks, RunList, RunView, SubmitRequest};
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use k8s_openapi::api::authentication::v1::UserInfo;
use kube::core::Status;
use serde_json::{Value, json};

use crate::app::AppState;
use crate::auth::{Get, Identity, Patch, Person, allowed, forbidden, is_name};
use crate::body::{self, invalid, shortened};
use crate::error::ApiError;
use crate::runs;
use crate::store::Digest;

/// An AgentRun may have 1.5 MiB in the cluster's store.
const MAX_SUBMIT_BYTES: usize = 1024 * 1024;
/// Runs of one list.
const MAX_LISTED: usize = 500;
const MAX_KEY: usize = 255;
const WRITE_TIME: std::time::Duration = std::time::Duration::from_secs(10);
/// For the watch to bring what was just made, so that whoever made it finds it by its id.
const WATCH_TIME: std::time::Duration = std::time::Duration::from_secs(2);
/// Whose request made a run, and what it said: SHA-256 both.
const KEY_ANNOTATION: &str = "agentrun.dev/idempotency-key";
const REQUEST_ANNOTATION: &str = "agentrun.dev/submitted-request";

/// One run.
pub(crate) async fn one(person: Person<Get>) -> Json<RunView> {
    Json(view(&person.run))
}

/// 202; the run ends as `Cancelled`. 409 `already_completed` if it has ended otherwise.
pub(crate) async fn cancel(person: Person<Patch>, State(state): State<AppState>) -> Result<(StatusCode, Json<RunView>), ApiError> {
    runs::cancel(&state.kube, &person.run).await?;
    tracing::info!(uid = runs::uid(&person.run), by = person.username, "a run was cancelled");
    Ok((StatusCode::ACCEPTED, Json(view(&person.run))))
}

/// The newest runs of `?namespace=`, or of all namespaces for whoever may list them.
pub(crate) async fn list(
    Identity(user): Identity,
    State(state): State<AppState>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Json<RunList>, ApiError> {
    let Query(query) = query.map_err(|_| ApiError::bad_request("invalid_query", "the query string cannot be read").field("query"))?;
    let mut namespace = String::new();
    for (name, value) in query {
        match name.as_str() {
            "namespace" if is_name(&value) => namespace = value,
            "namespace" => return Err(ApiError::bad_request("invalid_parameter", "namespace must name a namespace").field("namespace")),
            other => {
                let other = shortened(other);
                return Err(ApiError::bad_request("unknown_parameter", format!("{other} is no parameter; namespace is")).field(other));
            }
        }
    }
    if !allowed(&state.kube, user, "list", &namespace, None).await? {
        return Err(match namespace.as_str() {
            "" => ApiError::new(
                StatusCode::FORBIDDEN,
                "forbidden",
                format!("this needs the RBAC verb list on agentruns.{GROUP} in all namespaces; name one with ?namespace="),
            ),
            namespace => forbidden("list", namespace, None),
        });
    }
    let mut found = state.runs.snapshot();
    found.retain(|run| namespace.is_empty() || runs::namespace(run) == namespace);
    let age = |run: &AgentRun| run.metadata.creation_timestamp.as_ref().map(|time| time.0);
    found.sort_by(|a, b| age(b).cmp(&age(a)).then_with(|| runs::uid(a).cmp(runs::uid(b))));
    let more = found.len() > MAX_LISTED;
    Ok(Json(RunList { runs: found.iter().take(MAX_LISTED).map(|run| view(run)).collect(), more }))
}

/// 202, with where to look. With an `Idempotency-Key`, the same request again gives the same run.
pub(crate) async fn submit(
    Identity(user): Identity,
    State(state): State<AppState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let request: SubmitRequest = body::object(&body::read(body, MAX_SUBMIT_BYTES).await?)?;
    let namespace = request.namespace.clone();
    if !is_name(&namespace) || namespace.contains('.') {
        return Err(invalid("namespace", "must name a namespace"));
    }
    if request.name.is_some() == request.generate_name.is_some() {
        return Err(invalid("name", "either name or generateName must be given"));
    }
    let key = headers.get("idempotency-key").map(|key| key_of(key, &user, &namespace)).transpose()?;
    if !allowed(&state.kube, user.clone(), "create", &namespace, None).await? {
        return Err(forbidden("create", &namespace, None));
    }
    let object = object(&request, key.as_deref(), user.username.as_deref().unwrap_or_default())?;
    let run = match create(&state, &namespace, &object).await {
        Ok(run) => run,
        Err(kube::Error::Api(status)) if status.code == 409 => standing(&state, &namespace, &object).await?,
        Err(kube::Error::Api(status)) => return Err(refused(&status)),
        Err(error) => return Err(ApiError::api_server(error)),
    };
    state.runs.wait_for(runs::uid(&run), WATCH_TIME).await;
    let view = view(&run);
    let place = HeaderValue::from_str(&view.links.run).map_err(ApiError::internal)?;
    tracing::info!(uid = view.id, namespace, by = user.username, "a run was submitted");
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, place)], Json(view)).into_response())
}

/// What stands for a key: who sent it, where to and what.
fn key_of(key: &HeaderValue, user: &UserInfo, namespace: &str) -> Result<String, ApiError> {
    let key = key.to_str().ok().filter(|key| (1..=MAX_KEY).contains(&key.len()));
    let key = key.ok_or_else(|| {
        ApiError::bad_request("invalid_idempotency_key", format!("an Idempotency-Key has 1 to {MAX_KEY} printable ASCII characters"))
            .field("Idempotency-Key")
    })?;
    Ok(Digest::of(json!([user.username, namespace, key]).to_string().as_bytes()).hex())
}

/// The AgentRun to be made.
fn object(request: &SubmitRequest, key: Option<&str>, submitter: &str) -> Result<Value, ApiError> {
    let said = serde_json::to_vec(request).map_err(ApiError::internal)?;
    let mut spec = request.spec.clone();
    match spec.as_object_mut() {
        // Whoever has been authenticated, whatever was sent.
        Some(members) => drop(members.insert("submittedBy".into(), submitter.into())),
        None => return Err(invalid("spec", "must be an object, as in an AgentRun")),
    }
    let mut metadata = json!({"namespace": request.namespace});
    if let Some(key) = key {
        metadata["annotations"] = json!({KEY_ANNOTATION: key, REQUEST_ANNOTATION: Digest::of(&said).hex()});
    }
    match (&request.name, &request.generate_name, key) {
        (Some(name), _, _) => metadata["name"] = name.as_str().into(),
        // The same key gives the same name, which the API server lets be once.
        (None, Some(prefix), Some(key)) => metadata["name"] = format!("{prefix}{}", &key[..10]).into(),
        (None, prefix, _) => metadata["generateName"] = prefix.as_deref().unwrap_or_default().into(),
    }
    Ok(json!({"apiVersion": format!("{GROUP}/v1alpha1"), "kind": "AgentRun", "metadata": metadata, "spec": spec}))
}

/// As it was sent, so that the API server judges every field of it.
async fn create(state: &AppState, namespace: &str, object: &Value) -> kube::Result<AgentRun> {
    let path = format!("/apis/{GROUP}/v1alpha1/namespaces/{namespace}/agentruns?fieldManager={}&fieldValidation=Strict", names::GATEWAY);
    let request = http::Request::post(path).header(header::CONTENT_TYPE, "application/json").body(object.to_string().into_bytes());
    let request = request.map_err(kube::Error::HttpError)?;
    match tokio::time::timeout(WRITE_TIME, state.kube.request(request)).await {
        Ok(answer) => answer,
        Err(_) => Err(kube::Error::Service("creating an AgentRun took too long".into())),
    }
}

/// The run that is there already: this request's own, or in its way.
async fn standing(state: &AppState, namespace: &str, object: &Value) -> Result<AgentRun, ApiError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let taken =
        || ApiError::conflict("already_exists", format!("there is an AgentRun {name} in namespace {namespace} already")).field("name");
    let run = state.runs.find_named(namespace, name).await?.ok_or_else(taken)?;
    let said = |key: &str| run.metadata.annotations.as_ref().and_then(|all| all.get(key)).map(String::as_str);
    let ours = |key: &str| object["metadata"]["annotations"][key].as_str();
    if ours(KEY_ANNOTATION).is_none() || said(KEY_ANNOTATION) != ours(KEY_ANNOTATION) {
        return Err(taken());
    }
    if said(REQUEST_ANNOTATION) != ours(REQUEST_ANNOTATION) {
        let message = format!("this key made AgentRun {name} with another request; a key may be repeated only with the same one");
        return Err(ApiError::conflict("idempotency_key_reused", message).field("Idempotency-Key"));
    }
    Ok((*run).clone())
}

/// What the API server said of the object, at the field where it said one.
fn refused(status: &Status) -> ApiError {
    let cause = status.details.as_ref().and_then(|details| details.causes.first());
    let message = shortened(cause.map(|cause| &cause.message).filter(|message| !message.is_empty()).unwrap_or(&status.message));
    match status.code {
        400 | 422 => invalid(cause.map_or("spec", |cause| cause.field.as_str()), message),
        403 => ApiError::new(StatusCode::FORBIDDEN, "refused", format!("the cluster refused the run: {message}")),
        404 => ApiError::not_found(format!("the run cannot be made: {message}")).field("namespace"),
        _ => ApiError::api_server(&status.message),
    }
}

fn view(run: &AgentRun) -> RunView {
    let status = run.status.as_ref();
    let complete = status.and_then(|status| status.conditions.iter().find(|one| one.type_ == types::COMPLETE && one.status == "True"));
    let id = runs::uid(run).to_owned();
    let beneath = |what: &str| format!("/v1/runs/{id}{what}");
    RunView {
        namespace: runs::namespace(run).into(),
        name: runs::name(run).into(),
        phase: status.and_then(|status| status.phase).map(|phase| phase.as_str().into()),
        reason: complete.map(|complete| complete.reason.clone()),
        message: complete.map(|complete| complete.message.clone()),
        submitted_by: run.spec.submitted_by.clone(),
        created_at: run.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string()),
        links: RunLinks {
            run: beneath(""),
            events: beneath("/events"),
            approvals: beneath("/approvals"),
            artifacts: beneath("/artifacts"),
            patch: beneath("/patch"),
            source: beneath("/source"),
            cancel: beneath("/cancel"),
        },
        id,
    }
}
