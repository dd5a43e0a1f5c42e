//! An API server in memory for tests: one AgentRun with optimistic concurrency and the status rules that matter here, Pods,
//! Secrets, reviews, and faults on demand. Several clients may share it, as several gateways share a cluster.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use agentrun_crds::AgentRun;
use agentrun_crds::budget::Budget;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};

/// What happens to a request instead of being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Somebody else wrote in between.
    Conflict,
    /// 500, nothing done.
    Broken,
    /// Done, but the answer is lost.
    ReplyLost,
    /// Never answered.
    Hang,
}

/// Cheap to clone.
#[derive(Clone, Default)]
pub struct FakeApi(Arc<Mutex<State>>);

#[derive(Default)]
pub struct State {
    /// The AgentRun; null when deleted.
    pub run: Value,
    version: u64,
    /// By path `namespaces/<ns>/<plural>/<name>`.
    pub objects: HashMap<String, Value>,
    /// `TokenReview.status` by token.
    pub tokens: HashMap<String, Value>,
    /// Whether SubjectAccessReviews are allowed.
    pub allowed: bool,
    /// For the next status patches.
    pub patch_faults: VecDeque<Fault>,
    /// For every read of the run, until cleared.
    pub read_fault: Option<Fault>,
    /// Delay of each request.
    pub latency: Duration,
    /// Status writes that were done.
    pub writes: usize,
    /// Rules of the CRD that a write broke.
    pub violations: Vec<String>,
    /// `METHOD path` of each request.
    pub requests: Vec<String>,
}

impl FakeApi {
    /// With one run.
    pub fn with_run(run: Value) -> Self {
        let api = FakeApi::default();
        api.lock().set_run(run);
        api
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The run as it stands.
    pub fn run(&self) -> AgentRun {
        serde_json::from_value(self.lock().run.clone()).unwrap()
    }

    /// Its budget as it stands.
    pub fn budget(&self) -> Budget {
        self.run().status.unwrap().budget.unwrap()
    }

    /// Change the run as the operator would.
    pub fn edit(&self, pointer: &str, value: Value) {
        let mut state = self.lock();
        let mut run = state.run.clone();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        run.pointer_mut(parent).unwrap()[name] = value;
        state.set_run(run);
    }

    /// Wait until the run is so. Panics after ten seconds, saying how it stands.
    pub async fn until(&self, what: &str, holds: impl Fn(&AgentRun) -> bool) {
        let waiting = async {
            while !holds(&self.run()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(10), waiting).await.is_err() {
            panic!("never {what}: {}", self.lock().run["status"]);
        }
    }

    /// A client of it.
    pub fn client(&self) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        kube::Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let latency = self.lock().latency;
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        let answer = self.lock().answer(&parts.method, parts.uri.path(), &body);
        match answer {
            Some((code, value)) => {
                let builder = Response::builder().status(code).header("content-type", "application/json");
                builder.body(Body::from(value.to_string().into_bytes())).unwrap()
            }
            None => std::future::pending().await,
        }
    }
}

fn status(code: u16, reason: &str) -> Option<(StatusCode, Value)> {
    let body = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": reason, "code": code });
    Some((StatusCode::from_u16(code).unwrap(), body))
}

impl State {
    fn set_run(&mut self, mut run: Value) {
        self.version += 1;
        if run.is_object() {
            run["metadata"]["resourceVersion"] = json!(self.version.to_string());
        }
        self.run = run;
    }

    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> Option<(StatusCode, Value)> {
        self.requests.push(format!("{method} {path}"));
        let json: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let ours = |run: &Value| {
            let name = |field: &str| run["metadata"][field].as_str().unwrap_or_default().to_owned();
            format!("/apis/agentrun.dev/v1alpha1/namespaces/{}/agentruns/{}", name("namespace"), name("name"))
        };
        if *method == Method::GET && path == ours(&self.run) {
            return match self.read_fault {
                Some(Fault::Hang) => None,
                Some(_) => status(500, "InternalError"),
                None => Some((StatusCode::OK, self.run.clone())),
            };
        }
        if *method == Method::PATCH && path == format!("{}/status", ours(&self.run)) {
            return self.patch(&json);
        }
        if path.ends_with("/tokenreviews") {
            let token = json["spec"]["token"].as_str().unwrap_or_default();
            let answer = self.tokens.get(token).cloned().unwrap_or_else(|| json!({ "authenticated": false }));
            return Some((
                StatusCode::CREATED,
                json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}, "spec": json["spec"], "status": answer }),
            ));
        }
        if path.ends_with("/subjectaccessreviews") {
            let answer = json!({ "allowed": self.allowed });
            return Some((
                StatusCode::CREATED,
                json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}, "spec": json["spec"], "status": answer }),
            ));
        }
        match self.objects.get(path.trim_start_matches("/api/v1/")) {
            Some(object) if *method == Method::GET => Some((StatusCode::OK, object.clone())),
            _ => status(404, "NotFound"),
        }
    }

    fn patch(&mut self, patch: &Value) -> Option<(StatusCode, Value)> {
        let fault = self.patch_faults.pop_front();
        match fault {
            Some(Fault::Conflict) => {
                let run = self.run.clone();
                self.set_run(run);
            }
            Some(Fault::Broken) => return status(500, "InternalError"),
            Some(Fault::Hang) => return None,
            Some(Fault::ReplyLost) | None => {}
        }
        let current = self.run["metadata"].clone();
        if patch["metadata"]["resourceVersion"] != current["resourceVersion"] || patch["metadata"]["uid"] != current["uid"] {
            return status(409, "Conflict");
        }
        let mut run = self.run.clone();
        merge(&mut run["status"], &patch["status"]);
        self.check_rules(&run);
        self.set_run(run);
        self.writes += 1;
        if fault == Some(Fault::ReplyLost) { status(500, "InternalError") } else { Some((StatusCode::OK, self.run.clone())) }
    }

    /// The CRD's own rules on the budget, and the promise: spent and reserved never pass the limit unless a provider overran.
    fn check_rules(&mut self, after: &Value) {
        let budget = |run: &Value| serde_json::from_value::<Budget>(run["status"]["budget"].clone()).ok();
        let (Some(before), Some(after)) = (budget(&self.run), budget(after)) else { return };
        let mut broken = |rule: &str| self.violations.push(rule.to_owned());
        if after.spent.requests < before.spent.requests
            || after.spent.input_tokens < before.spent.input_tokens
            || after.spent.output_tokens < before.spent.output_tokens
            || after.spent.cost_micros < before.spent.cost_micros
            || after.spent.upstream_attempts < before.spent.upstream_attempts
        {
            broken("spent fell");
        }
        if after.reservations.len() > agentrun_crds::budget::MAX_RESERVATIONS {
            broken("too many reservations");
        }
        let held = after.reserved();
        let within = |limit: Option<i64>, sum: i64| limit.is_none_or(|limit| sum <= limit);
        let fits = after.spent.requests + held.requests <= after.limit.requests
            && within(after.limit.input_tokens, after.spent.input_tokens + held.input_tokens)
            && within(after.limit.output_tokens, after.spent.output_tokens + held.output_tokens)
            && within(after.limit.cost_micros, after.spent.cost_micros + held.cost_micros);
        if !fits && after.overrun.is_none() {
            broken("spent and reserved pass the limit");
        }
    }
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(members) = target.as_object_mut() else { return };
    for (key, value) in patch {
        if value.is_null() {
            members.remove(key);
        } else {
            merge(members.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}
