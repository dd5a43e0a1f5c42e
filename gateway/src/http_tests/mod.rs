//! The routers as clients see them, without a socket: real stores in a temporary folder, and an API server that holds a few
//! runs, checks resourceVersions, and knows two people.

mod approvals;
mod artifacts;
mod events;
mod recorder;
mod result;
mod source;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use agentrun_crds::AgentRun;
use agentrun_protocol::token::Audience;
use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::app::{AppState, Parts, people_router, sandbox_router};
use crate::auth::TokenKeys;
use crate::budget::CallLimits;
use crate::clock::Clock;
use crate::events::LogRecorder;
use crate::fixtures;

pub const OTHER_UID: &str = "33333333-3333-4333-8333-333333333333";
/// Alice and Bob may read, change and decide in namespace `team`, Carol may read; `mallory` is known, but may not.
pub const ALICE: &str = "alice";
pub const BOB: &str = "bob";
pub const CAROL: &str = "carol";
pub const MALLORY: &str = "mallory";

/// What the API server holds, by path.
#[derive(Default)]
pub struct Cluster {
    objects: BTreeMap<String, Value>,
    pub status_writes: usize,
    /// Applied before the next status write: somebody else was faster.
    pub meanwhile: Option<fn(&mut Value)>,
}

impl Cluster {
    fn answer(&mut self, method: &Method, path: &str, body: &Value) -> (StatusCode, Value) {
        let failure = |code: StatusCode, reason: &str| {
            (
                code,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason, "reason": reason, "code": code.as_u16()}),
            )
        };
        if path.ends_with("/tokenreviews") {
            let user = body["spec"]["token"].as_str().filter(|token| [ALICE, BOB, CAROL, MALLORY].contains(token));
            let status = json!({"authenticated": user.is_some(), "user": {"username": user}, "audiences": body["spec"]["audiences"]});
            return (StatusCode::CREATED, json!({"spec": body["spec"], "status": status}));
        }
        if path.ends_with("/subjectaccessreviews") {
            let asked = &body["spec"];
            let resource = &asked["resourceAttributes"];
            let verbs: &[&str] = match asked["user"].as_str() {
                Some(ALICE | BOB) => &["get", "list", "patch", "create", "approve"],
                Some(CAROL) => &["get"],
                _ => &[],
            };
            let allowed = resource["namespace"] == "team" && verbs.iter().any(|verb| resource["verb"] == *verb);
            return (StatusCode::CREATED, json!({"spec": asked, "status": {"allowed": allowed}}));
        }
        let Some(object) = self.objects.get_mut(path.trim_end_matches("/status")) else {
            return failure(StatusCode::NOT_FOUND, "NotFound");
        };
        if method == Method::PATCH {
            if let Some(meanwhile) = self.meanwhile.take() {
                meanwhile(object);
                bump(object);
            }
            let stated = &body["metadata"]["resourceVersion"];
            let status = path.ends_with("/status");
            if (status || !stated.is_null()) && *stated != object["metadata"]["resourceVersion"] {
                return failure(StatusCode::CONFLICT, "Conflict");
            }
            let part = if status { "status" } else { "spec" };
            merge(&mut object[part], &body[part]);
            bump(object);
            self.status_writes += usize::from(status);
        }
        (StatusCode::OK, object.clone())
    }
}

fn bump(object: &mut Value) {
    let version: u64 = object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).expect("a version");
    object["metadata"]["resourceVersion"] = (version + 1).to_string().into();
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    match patch.as_object() {
        None => *target = patch.clone(),
        Some(members) => {
            if !target.is_object() {
                *target = json!({});
            }
            for (name, value) in members {
                if value.is_null() {
                    target.as_object_mut().expect("an object").remove(name);
                } else {
                    merge(&mut target[name], value);
                }
            }
        }
    }
}

/// A gateway with its cluster.
pub struct World {
    pub cluster: Arc<Mutex<Cluster>>,
    pub state: AppState,
    pub recorder: LogRecorder,
    pub sandbox: Router,
    pub people: Router,
    /// Unix seconds.
    pub now: Arc<AtomicI64>,
    _folder: tempfile::TempDir,
}

/// An answer, read to its end.
pub struct Answer {
    pub status: StatusCode,
    pub headers: http::HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {:?}", self.body))
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("UTF-8")
    }

    /// Status, code and field of a refusal.
    pub fn refusal(&self) -> (u16, String, Option<String>) {
        let body: agentrun_protocol::error::ErrorBody =
            serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no refusal: {} {}", self.status, self.text()));
        (self.status.as_u16(), body.error.code, body.error.field)
    }
}

impl World {
    /// The fixture's run `fix-it` and a second one, `other`, in the same namespace.
    pub fn new() -> Self {
        let cluster = Arc::new(Mutex::new(Cluster::default()));
        let server = cluster.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.expect("a body");
                let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).expect("JSON") };
                let (status, answer) = server.lock().expect("not poisoned").answer(&parts.method, parts.uri.path(), &body);
                let response = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
                Ok::<_, std::convert::Infallible>(
                    response.body(kube::client::Body::from(answer.to_string().into_bytes())).expect("a response"),
                )
            }
        });
        let folder = tempfile::tempdir().expect("folder");
        let now = Arc::new(AtomicI64::new(fixtures::NOW));
        let clock = Clock::from_fn({
            let now = now.clone();
            move || now.load(Ordering::SeqCst) * 1000
        });
        let stores = fixtures::stores(folder.path(), clock.clone());
        let recorder = LogRecorder::new(stores.clone());
        let state = AppState::assemble(Parts {
            clock,
            kube: kube::Client::new(service, "agentrun-system"),
            namespace: "agentrun-system".into(),
            instance: "test-0".into(),
            keys: TokenKeys::new(fixtures::ring()).1,
            stores,
            recorder: Arc::new(recorder.clone()),
            call_limits: CallLimits { rates: Default::default(), in_flight: 4 },
        });
        let world = World {
            cluster,
            sandbox: sandbox_router(state.clone()),
            people: people_router(state.clone(), crate::people::Site::new("agentrun-system", &[], &[])),
            state,
            recorder,
            now,
            _folder: folder,
        };
        world.apply(fixtures::run_json());
        let mut other = fixtures::run_json();
        other["metadata"]["name"] = "other".into();
        other["metadata"]["uid"] = OTHER_UID.into();
        world.apply(other);
        world
    }

    /// Put a run into the cluster, and let the watch bring it.
    pub fn apply(&self, run: Value) {
        let path = format!("/apis/agentrun.dev/v1alpha1/namespaces/team/agentruns/{}", run["metadata"]["name"].as_str().expect("a name"));
        self.state.runs.insert_for_test(serde_json::from_value(run.clone()).expect("a run"));
        self.cluster.lock().expect("not poisoned").objects.insert(path, run);
    }

    /// The run as it stands in the cluster; the watch brings it too.
    pub fn live(&self, name: &str) -> Value {
        let path = format!("/apis/agentrun.dev/v1alpha1/namespaces/team/agentruns/{name}");
        let run = self.cluster.lock().expect("not poisoned").objects[&path].clone();
        self.state.runs.insert_for_test(serde_json::from_value::<AgentRun>(run.clone()).expect("a run"));
        run
    }

    /// Change a run in the cluster; the watch brings it.
    pub fn edit(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut run = self.live(name);
        change(&mut run);
        bump(&mut run);
        self.apply(run);
    }

    /// The runner of a run asks, with its events token.
    pub async fn runner(&self, uid: &str, method: &str, path: &str, body: impl Into<Body>) -> Answer {
        self.runner_as(Audience::Events, uid, method, path, body).await
    }

    /// The same with its token for another audience.
    pub async fn runner_as(&self, audience: Audience, uid: &str, method: &str, path: &str, body: impl Into<Body>) -> Answer {
        let mut claims = fixtures::claims(audience);
        claims.run_uid = uuid::Uuid::parse_str(uid).expect("a UID").into_bytes();
        let token = fixtures::ring().mint(&claims);
        send(&self.sandbox, method, path, &[("authorization", &format!("Bearer {token}"))], body.into()).await
    }

    /// A person asks.
    pub async fn person(&self, who: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.person_with(who, "GET", path, headers, Body::empty()).await
    }

    /// A person sends any body.
    pub async fn person_with(&self, who: &str, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Answer {
        let bearer = format!("Bearer {who}");
        let all: Vec<(&str, &str)> = [("authorization", bearer.as_str())].into_iter().chain(headers.iter().copied()).collect();
        send(&self.people, method, path, &all, body.into()).await
    }

    /// A person sends JSON.
    pub async fn person_sends(&self, who: &str, method: &str, path: &str, body: &Value) -> Answer {
        self.person_with(who, method, path, &[("content-type", "application/json")], body.to_string()).await
    }

    /// Upload content for a run; its digest.
    pub async fn upload(&self, uid: &str, content: &[u8]) -> String {
        let digest = crate::store::Digest::of(content).to_string();
        let answer = self.runner(uid, "PUT", &format!("/sandbox/v1/blobs/{digest}"), content.to_vec()).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.text());
        digest
    }
}

async fn send(router: &Router, method: &str, path: &str, headers: &[(&str, &str)], body: Body) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("host", "agentrun-gateway");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = router.clone().oneshot(request.body(body).expect("a request")).await.expect("infallible");
    let (parts, body) = response.into_parts();
    let body = tokio::time::timeout(std::time::Duration::from_secs(30), body.collect())
        .await
        .expect("the answer ends")
        .expect("a body")
        .to_bytes();
    Answer { status: parts.status, headers: parts.headers, body }
}
