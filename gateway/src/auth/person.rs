//! People on the people listener: a ServiceAccount or OIDC bearer token, checked by TokenReview; then a
//! SubjectAccessReview says whether they may get this AgentRun. Routes name their parameters `{ns}` and `{name}`.

use std::sync::Arc;

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
use crate::error::ApiError;

/// A person who may read the run in the path.
pub struct Person {
    pub username: String,
    /// The run in the path, as last seen by the watch.
    pub run: Arc<AgentRun>,
}

impl FromRequestParts<AppState> for Person {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let token = bearer(&parts.headers).ok_or_else(unauthorized)?.to_owned();
        let params = RawPathParams::from_request_parts(parts, state).await.map_err(|_| ApiError::not_found("no such route"))?;
        let param = |wanted: &str| params.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.to_owned());
        let (Some(namespace), Some(name)) = (param("ns"), param("name")) else {
            return Err(ApiError::internal("a people route lacks {ns} or {name}"));
        };
        let user = authenticate(&state.kube, token).await?;
        let username = user.username.clone().unwrap_or_default();
        authorize(&state.kube, user, &namespace, &name).await?;
        let run = state
            .runs
            .get_named(&namespace, &name)
            .ok_or_else(|| ApiError::not_found(format!("there is no AgentRun {name} in namespace {namespace}")))?;
        Ok(Person { username, run })
    }
}

fn unauthorized() -> ApiError {
    ApiError::new(
        StatusCode::UNAUTHORIZED,
        "unauthorized",
        format!("a bearer token that the API server accepts is needed, for audience {} or its default", names::PEOPLE_AUDIENCE),
    )
}

/// Our own audience first, then the API server's default, so that `kubectl create token` works without flags.
async fn authenticate(kube: &Client, token: String) -> Result<UserInfo, ApiError> {
    let api: Api<TokenReview> = Api::all(kube.clone());
    for audiences in [Some(vec![names::PEOPLE_AUDIENCE.to_owned()]), None] {
        let wanted = audiences.clone();
        let spec = TokenReviewSpec { token: token.clone(), audiences };
        let review = TokenReview { spec, ..TokenReview::default() };
        let status = api.create(&PostParams::default(), &review).await.map_err(ApiError::api_server)?.status.unwrap_or_default();
        // An authenticator that ignores audiences answers without them; then the token is good for the default one only.
        let audience_holds = wanted.is_none_or(|wanted| status.audiences.unwrap_or_default().iter().any(|got| wanted.contains(got)));
        if status.authenticated == Some(true) && audience_holds {
            return status.user.ok_or_else(unauthorized);
        }
    }
    Err(unauthorized())
}

async fn authorize(kube: &Client, user: UserInfo, namespace: &str, name: &str) -> Result<(), ApiError> {
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
                verb: Some("get".into()),
                namespace: Some(namespace.into()),
                name: Some(name.into()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let answer = api.create(&PostParams::default(), &review).await.map_err(ApiError::api_server)?;
    if answer.status.is_some_and(|status| status.allowed) {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::FORBIDDEN,
        "forbidden",
        format!("reading AgentRun {name} in namespace {namespace} needs the RBAC verb get on agentruns.{GROUP}"),
    ))
}
