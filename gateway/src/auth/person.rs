//! People: who they are, and whether they may do what the route does to the run in the path. On the people listener a
//! ServiceAccount or OIDC bearer token is checked by TokenReview; on the aggregated listener the API server has said who it
//! is, and that listener alone puts an `Identity` into the request. A SubjectAccessReview decides in both cases. Routes name
//! their parameters `{ns}` and `{name}`, or `{id}`.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use agentrun_crds::{AgentRun, GROUP, names};
use axum::extract::{FromRequestParts, RawPathParams};
use http::StatusCode;
use http::request::Parts;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};

use super::bearer;
use crate::app::AppState;
use crate::body::shortened;
use crate::error::ApiError;
use crate::runs;

const REVIEW_TIME: Duration = Duration::from_secs(5);

/// Who somebody is, as the cluster knows them. A request carries one only if the listener that verified it put it there.
#[derive(Clone, Debug, Default)]
pub struct Identity(pub UserInfo);

/// An RBAC verb on `agentruns`.
pub trait Verb: Send + Sync + 'static {
    const VERB: &'static str;
}

macro_rules! verbs {
    ($($(#[$doc:meta])* $name:ident $verb:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl Verb for $name {
            const VERB: &'static str = $verb;
        }
    )*};
}

verbs! {
    /// Reading.
    Get "get";
    /// Cancelling, and uploading the source.
    Patch "patch";
    /// Deciding.
    Approve "approve";
}

/// A person who may do `V` to the run in the path.
pub struct Person<V: Verb = Get> {
    pub username: String,
    /// The run in the path, as last seen by the watch.
    pub run: Arc<AgentRun>,
    verb: PhantomData<V>,
}

impl<V: Verb> FromRequestParts<AppState> for Person<V> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let Identity(user) = identify(parts, state).await?;
        let username = user.username.clone().unwrap_or_default();
        let params = RawPathParams::from_request_parts(parts, state).await.map_err(|_| ApiError::not_found("no such route"))?;
        let param = |wanted: &str| params.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value);
        let run = match (param("ns"), param("name"), param("id")) {
            (Some(namespace), Some(name), _) => by_name::<V>(state, user, namespace, name).await?,
            (_, _, Some(id)) => by_id::<V>(state, user, id).await?,
            _ => return Err(ApiError::internal("a people route lacks {ns} and {name}, or {id}")),
        };
        Ok(Person { username, run, verb: PhantomData })
    }
}

/// Whoever may not do this learns nothing of whether there is such a run.
async fn by_name<V: Verb>(state: &AppState, user: UserInfo, namespace: &str, name: &str) -> Result<Arc<AgentRun>, ApiError> {
    let absent = || {
        let (namespace, name) = (shortened(namespace), shortened(name));
        ApiError::not_found(format!("there is no AgentRun {name} in namespace {namespace}"))
    };
    // Names go into the paths of our own requests.
    if !is_name(namespace) || !is_name(name) {
        return Err(absent());
    }
    if !allowed(&state.kube, user, V::VERB, namespace, Some(name)).await? {
        return Err(forbidden(V::VERB, namespace, Some(name)));
    }
    state.runs.find_named(namespace, name).await?.ok_or_else(absent)
}

/// An id alone says nothing of where the run is, so whoever may not read it is told that there is none.
async fn by_id<V: Verb>(state: &AppState, user: UserInfo, id: &str) -> Result<Arc<AgentRun>, ApiError> {
    let absent = || ApiError::not_found("there is no AgentRun with this id, or you may not read it");
    let run = state.runs.get(id).ok_or_else(absent)?;
    let (namespace, name) = (runs::namespace(&run), runs::name(&run));
    if allowed(&state.kube, user.clone(), V::VERB, namespace, Some(name)).await? {
        return Ok(run);
    }
    if V::VERB != Get::VERB && allowed(&state.kube, user, Get::VERB, namespace, Some(name)).await? {
        return Err(forbidden(V::VERB, namespace, Some(name)));
    }
    Err(absent())
}

/// What the API server takes as the name of a namespace or a run.
pub(crate) fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
    (1..=253).contains(&text.len()) && text.bytes().all(plain) && !text.starts_with('.') && !text.contains("..")
}

impl FromRequestParts<AppState> for Identity {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        identify(parts, state).await
    }
}

/// Who sends this request.
pub async fn identify(parts: &Parts, state: &AppState) -> Result<Identity, ApiError> {
    if let Some(identity) = parts.extensions.get::<Identity>() {
        return Ok(identity.clone());
    }
    let token = bearer(&parts.headers).ok_or_else(unauthorized)?.to_owned();
    authenticate(&state.kube, token).await.map(Identity)
}

fn unauthorized() -> ApiError {
    ApiError::new(
        StatusCode::UNAUTHORIZED,
        "unauthorized",
        format!("a bearer token that the API server accepts is needed, for audience {} or its default", names::PEOPLE_AUDIENCE),
    )
}

/// The client's own retries could take minutes.
async fn in_time<T>(review: impl Future<Output = kube::Result<T>>) -> Result<T, ApiError> {
    match tokio::time::timeout(REVIEW_TIME, review).await {
        Ok(answer) => answer.map_err(ApiError::api_server),
        Err(_) => Err(ApiError::api_server("a review took too long")),
    }
}

/// Our own audience first, then the API server's default, so that `kubectl create token` works without flags.
async fn authenticate(kube: &Client, token: String) -> Result<UserInfo, ApiError> {
    let api: Api<TokenReview> = Api::all(kube.clone());
    for audiences in [Some(vec![names::PEOPLE_AUDIENCE.to_owned()]), None] {
        let wanted = audiences.clone();
        let spec = TokenReviewSpec { token: token.clone(), audiences };
        let review = TokenReview { spec, ..TokenReview::default() };
        let status = in_time(api.create(&PostParams::default(), &review)).await?.status.unwrap_or_default();
        // An authenticator that ignores audiences answers without them; then the token is good for the default one only.
        let audience_holds = wanted.is_none_or(|wanted| status.audiences.unwrap_or_default().iter().any(|got| wanted.contains(got)));
        if status.authenticated == Some(true) && audience_holds {
            return status.user.ok_or_else(unauthorized);
        }
    }
    Err(unauthorized())
}

/// Whether somebody may do this to one run, or to all runs of a namespace.
pub(crate) async fn allowed(kube: &Client, user: UserInfo, verb: &str, namespace: &str, name: Option<&str>) -> Result<bool, ApiError> {
    let api: Api<SubjectAccessReview> = Api::all(kube.clone());
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: user.username,
            groups: user.groups,
            uid: user.uid,
            extra: user.extra,
            resource_attributes: Some(ResourceAttributes {
                group: Some(GROUP.into()),
                resource: Some("agentruns".into()),
                verb: Some(verb.into()),
                namespace: Some(namespace.into()),
                name: name.map(Into::into),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let answer = in_time(api.create(&PostParams::default(), &review)).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// 403, with what is needed.
pub(crate) fn forbidden(verb: &str, namespace: &str, name: Option<&str>) -> ApiError {
    let which = name.map(|name| format!(", for {name}")).unwrap_or_default();
    ApiError::new(
        StatusCode::FORBIDDEN,
        "forbidden",
        format!("this needs the RBAC verb {verb} on agentruns.{GROUP}{which} in namespace {namespace}"),
    )
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http::Request;
    use serde_json::{Value, json};
    use tower::ServiceExt;

    use super::*;
    use crate::fake_api::FakeApi;
    use crate::fixtures::{gateway, run_json};

    #[tokio::test]
    async fn a_person_needs_a_token_and_the_right_to_get_the_run() {
        let ours = json!({ "authenticated": true, "audiences": [names::PEOPLE_AUDIENCE], "user": { "username": "alice" } });
        type Row = (&'static str, Option<&'static str>, Value, bool, &'static str, u16);
        let rows: Vec<Row> = vec![
            ("allowed", Some("Bearer t"), ours.clone(), true, "fix-it", 200),
            ("lower case scheme", Some("bearer t"), ours.clone(), true, "fix-it", 200),
            ("no header", None, ours.clone(), true, "fix-it", 401),
            ("another scheme", Some("Basic t"), ours.clone(), true, "fix-it", 401),
            ("empty token", Some("Bearer "), ours.clone(), true, "fix-it", 401),
            ("unknown token", Some("Bearer other"), ours.clone(), true, "fix-it", 401),
            (
                "not authenticated",
                Some("Bearer t"),
                json!({ "authenticated": false, "user": { "username": "alice" } }),
                true,
                "fix-it",
                401,
            ),
            ("no right", Some("Bearer t"), ours.clone(), false, "fix-it", 403),
            ("no right, no run", Some("Bearer t"), ours.clone(), false, "other", 403),
            ("no run", Some("Bearer t"), ours, true, "other", 404),
        ];
        for (name, header, review, allowed, run, expected) in rows {
            let api = FakeApi::with_run(run_json());
            api.lock().tokens.insert("t".into(), review);
            api.lock().allowed = allowed;
            let gateway = gateway(&api, "gw-0");
            let router = axum::Router::new()
                .route("/{ns}/{name}", axum::routing::get(async |person: Person<Get>| person.username))
                .with_state(gateway.state.clone());
            let mut request = Request::get(format!("/team/{run}"));
            if let Some(header) = header {
                request = request.header("authorization", header);
            }
            let response = router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
            assert_eq!(response.status().as_u16(), expected, "{name}");
        }
    }
}
