//! An API server in memory for tests: one AgentRun and one AgentPolicy with optimistic concurrency and the status rules that
//! matter here, Pods, Secrets, reviews, Events, a clock, and faults on demand. Several clients may share it, as several gateways share a cluster.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use agentrun_crds::agent_policy_status::PeriodStatus;
use agentrun_crds::budget::{Amount, Budget, Limit, Reservation, Spent};
use agentrun_crds::period::Period;
use agentrun_crds::{AgentPolicy, AgentRun};
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
#[derive(Clone)]
pub struct FakeApi(Arc<Mutex<State>>);

impl Default for FakeApi {
    /// Empty, ten seconds after the fixture's exchange.
    fn default() -> Self {
        let clock = Arc::new(AtomicI64::new(crate::fixtures::NOW + 10));
        FakeApi(Arc::new(Mutex::new(State { clock, ..State::default() })))
    }
}

#[derive(Default)]
pub struct State {
    /// The AgentRun; null when deleted.
    pub run: Value,
    /// The namespace's AgentPolicy; null if there is none.
    policy: Value,
    version: u64,
    /// Events that were created, by name.
    pub events: HashMap<String, Value>,
    /// Unix seconds.
    clock: Arc<AtomicI64>,
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

    /// What gateways go by.
    pub fn clock(&self) -> Arc<AtomicI64> {
        self.lock().clock.clone()
    }

    /// Unix seconds.
    pub fn set_clock(&self, seconds: i64) {
        self.lock().clock.store(seconds, Ordering::Relaxed);
    }

    /// Give the run's namespace an AgentPolicy with these budgets and rate limits, or change them. Gateways that run already do not
    /// see it.
    pub fn set_policy(&self, budgets: Value, rate_limits: Value) {
        let mut state = self.lock();
        let (namespace, status) = (state.run["metadata"]["namespace"].clone(), state.policy["status"].clone());
        let uid = "33333333-3333-4333-8333-333333333333";
        let mut policy = json!({
            "apiVersion": "agentrun.dev/v1alpha1", "kind": "AgentPolicy",
            "metadata": { "name": "default", "namespace": namespace, "uid": uid },
            "spec": { "models": [], "images": [], "budgets": budgets, "rateLimits": rate_limits },
        });
        if status.is_object() {
            policy["status"] = status;
        }
        state.set(true, policy);
    }

    /// Delete the policy and make it again.
    pub fn forget_policy_status(&self) {
        let mut state = self.lock();
        state.policy["status"] = Value::Null;
        state.policy["metadata"]["uid"] = json!("44444444-4444-4444-8444-444444444444");
        let policy = state.policy.clone();
        state.set(true, policy);
    }

    /// The policy as it stands.
    pub fn policy(&self) -> Option<AgentPolicy> {
        serde_json::from_value(self.lock().policy.clone()).unwrap()
    }

    /// What stands of one of its periods.
    pub fn period(&self, period: Period) -> PeriodStatus {
        self.policy().unwrap().status.unwrap_or_default().of(period).unwrap().clone()
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
        for of_policy in [false, true] {
            let object = self.object(of_policy);
            let name = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
            let plural = if of_policy { "agentpolicies" } else { "agentruns" };
            let ours = format!("/apis/agentrun.dev/v1alpha1/namespaces/{}/{plural}/{}", name("namespace"), name("name"));
            if *method == Method::GET && path == ours {
                return match self.read_fault.filter(|_| !of_policy) {
                    Some(Fault::Hang) => None,
                    Some(_) => status(500, "InternalError"),
                    None => Some((StatusCode::OK, object.clone())),
                };
            }
            if *method == Method::PATCH && path == format!("{ours}/status") {
                return self.patch(of_policy, &json);
            }
        }
        if path.ends_with("/events") {
            let name = json["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if self.events.contains_key(&name) {
                return status(409, "AlreadyExists");
            }
            self.events.insert(name, json.clone());
            return Some((StatusCode::CREATED, json));
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

    fn patch(&mut self, of_policy: bool, patch: &Value) -> Option<(StatusCode, Value)> {
        let fault = self.patch_faults.pop_front();
        match fault {
            Some(Fault::Conflict) => {
                let same = self.object(of_policy).clone();
                self.set(of_policy, same);
            }
            Some(Fault::Broken) => return status(500, "InternalError"),
            Some(Fault::Hang) => return None,
            Some(Fault::ReplyLost) | None => {}
        }
        let current = self.object(of_policy)["metadata"].clone();
        if patch["metadata"]["resourceVersion"] != current["resourceVersion"] || patch["metadata"]["uid"] != current["uid"] {
            return status(409, "Conflict");
        }
        let before = self.object(of_policy).clone();
        let mut after = before.clone();
        merge(&mut after["status"], &patch["status"]);
        if of_policy {
            self.check_periods(&before, &after);
        } else {
            self.check_budget(&before, &after);
        }
        self.set(of_policy, after);
        self.writes += 1;
        if fault == Some(Fault::ReplyLost) { status(500, "InternalError") } else { Some((StatusCode::OK, self.object(of_policy).clone())) }
    }

    fn object(&self, of_policy: bool) -> &Value {
        if of_policy { &self.policy } else { &self.run }
    }

    fn set(&mut self, of_policy: bool, mut object: Value) {
        if !of_policy {
            return self.set_run(object);
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.policy = object;
    }

    fn check_budget(&mut self, before: &Value, after: &Value) {
        let budget = |run: &Value| serde_json::from_value::<Budget>(run["status"]["budget"].clone()).ok();
        let (Some(before), Some(after)) = (budget(before), budget(after)) else { return };
        self.check_rules((before.spent, &before.reservations), (after.spent, &after.reservations), after.limit, after.overrun);
    }

    fn check_periods(&mut self, before: &Value, after: &Value) {
        let periods = |policy: &Value| serde_json::from_value::<Vec<PeriodStatus>>(policy["status"]["budgets"].clone()).unwrap_or_default();
        let before = periods(before);
        for after in periods(after) {
            let same = before.iter().find(|before| before.period == after.period && before.starts_at == after.starts_at);
            let before = same.map_or((Spent::default(), &[][..]), |before| (before.spent, &before.reservations[..]));
            self.check_rules(before, (after.spent, &after.reservations), after.limit.ceilings(), after.overrun);
        }
    }

    /// The CRDs' own rules on budgets, and the promise: spent and reserved never pass the limit unless a provider overran. Where a
    /// limit was lowered they do not rise.
    fn check_rules(
        &mut self,
        (before, held_before): (Spent, &[Reservation]),
        (after, held): (Spent, &[Reservation]),
        limit: Limit,
        overrun: Option<Amount>,
    ) {
        let mut broken = |rule: &str| self.violations.push(rule.to_owned());
        if after.requests < before.requests
            || after.input_tokens < before.input_tokens
            || after.output_tokens < before.output_tokens
            || after.cost_micros < before.cost_micros
            || after.upstream_attempts < before.upstream_attempts
        {
            broken("spent fell");
        }
        if held.len() > agentrun_crds::budget::MAX_RESERVATIONS {
            broken("too many reservations");
        }
        let sum = |of: fn(Amount) -> i64, spent: i64, held: &[Reservation]| held.iter().fold(spent, |sum, r| sum + of(r.amount));
        type Row = (Option<i64>, fn(Amount) -> i64, i64, i64);
        let rows: [Row; 4] = [
            (Some(limit.requests), |amount| amount.requests, before.requests, after.requests),
            (limit.input_tokens, |amount| amount.input_tokens, before.input_tokens, after.input_tokens),
            (limit.output_tokens, |amount| amount.output_tokens, before.output_tokens, after.output_tokens),
            (limit.cost_micros, |amount| amount.cost_micros, before.cost_micros, after.cost_micros),
        ];
        for (limit, of, before, after) in rows {
            let (before, after) = (sum(of, before, held_before), sum(of, after, held));
            if overrun.is_none() && limit.is_some_and(|limit| after > limit.max(before)) {
                broken("spent and reserved pass the limit");
            }
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
