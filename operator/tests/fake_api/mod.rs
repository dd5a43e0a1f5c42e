//! An API server in memory, behind a mocked client: create, read, list, merge patch with resourceVersion, replace, delete
//! with preconditions and finalizers. Any write can be made to fail, before or after it took effect.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// How a write fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A 500, nothing written.
    Before,
    /// A 500, but it was written: the answer was lost.
    After,
    /// A 409, nothing written: somebody else was faster.
    Conflict,
}

#[derive(Default)]
pub struct State {
    pub objects: BTreeMap<String, Value>,
    /// `METHOD path` of every write that took effect.
    pub done: Vec<String>,
    /// Requests of any kind.
    pub requests: usize,
    /// Writes asked for, counted from 1.
    asked: usize,
    pub fail: Option<(usize, Failure)>,
    /// Refuse a POST whose path contains this, with code and message.
    pub refuse: Option<(String, u16, String)>,
    /// Refuse a DELETE whose path contains this.
    pub forbid: Option<String>,
    /// Violations that a request met.
    pub broken: Vec<String>,
    revision: u64,
    now: Timestamp,
}

#[derive(Clone)]
pub struct Fake(Arc<Mutex<State>>);

impl Fake {
    /// A server, and a client that talks to it.
    pub fn start(now: Timestamp) -> (Self, Client) {
        let fake = Fake(Arc::new(Mutex::new(State { now, ..State::default() })));
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let server = fake.clone();
        tokio::spawn(async move {
            while let Some((request, send)) = handle.next_request().await {
                let (parts, body) = request.into_parts();
                let bytes = body.collect().await.map(|collected| collected.to_bytes()).unwrap_or_default();
                let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
                let (code, answer) = server.answer(&parts.method, parts.uri.path(), body);
                let response = Response::builder().status(code).body(Body::from(serde_json::to_vec(&answer).unwrap())).unwrap();
                send.send_response(response);
            }
        });
        (fake, Client::new(service, "default"))
    }

    pub fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }

    pub fn now(&self) -> Timestamp {
        self.with(|state| state.now)
    }

    pub fn advance(&self, seconds: i64) {
        self.with(|state| state.now += SignedDuration::from_secs(seconds));
    }

    pub fn asked(&self) -> usize {
        self.with(|state| state.asked)
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.with(|state| state.objects.get(path).cloned())
    }

    /// Put an object there, as somebody else would.
    pub fn put(&self, path: &str, mut object: Value) {
        self.with(|state| {
            state.stamp(path, &mut object);
            state.objects.insert(path.to_owned(), object);
        });
    }

    /// Change an object, as somebody else would.
    pub fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        self.with(|state| {
            let mut object = state.objects.get(path).cloned().unwrap_or_else(|| panic!("no {path}"));
            change(&mut object);
            state.stamp(path, &mut object);
            state.objects.insert(path.to_owned(), object);
        });
    }

    pub fn remove(&self, path: &str) {
        self.with(|state| state.objects.remove(path));
    }

    /// Paths that contain this.
    pub fn paths(&self, part: &str) -> Vec<String> {
        self.with(|state| state.objects.keys().filter(|path| path.contains(part)).cloned().collect())
    }

    fn answer(&self, method: &Method, path: &str, body: Value) -> (u16, Value) {
        let mut state = self.0.lock().unwrap();
        state.requests += 1;
        if method == Method::GET {
            return state.read(path);
        }
        state.asked += 1;
        let failure = state.fail.filter(|(at, _)| *at == state.asked).map(|(_, failure)| failure);
        match failure {
            Some(Failure::Before) => return error(500, "InternalError", "injected"),
            Some(Failure::Conflict) => return error(409, "Conflict", "injected"),
            _ => {}
        }
        let (code, answer) = match *method {
            Method::POST => state.create(path, body),
            Method::PATCH => state.patch(path, &body),
            Method::PUT => state.replace(path, body),
            Method::DELETE => state.delete(path, &body),
            _ => error(405, "MethodNotAllowed", "no"),
        };
        if code < 300 {
            state.done.push(format!("{method} {path}"));
        }
        if failure == Some(Failure::After) { error(500, "InternalError", "injected") } else { (code, answer) }
    }
}

impl State {
    fn stamp(&mut self, path: &str, object: &mut Value) {
        self.revision += 1;
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = json!(self.revision.to_string());
        if metadata["uid"].is_null() {
            metadata["uid"] = json!(format!("uid-{}", self.revision));
        }
        if metadata["creationTimestamp"].is_null() {
            metadata["creationTimestamp"] = json!(self.now.to_string());
        }
        let mut parts = path.rsplit('/');
        if metadata["name"].is_null() {
            metadata["name"] = json!(parts.next());
        }
        if metadata["namespace"].is_null()
            && let Some((_, rest)) = path.split_once("/namespaces/")
            && let Some((namespace, _)) = rest.split_once('/')
        {
            metadata["namespace"] = json!(namespace);
        }
    }

    fn read(&self, path: &str) -> (u16, Value) {
        if let Some(object) = self.objects.get(path) {
            return (200, object.clone());
        }
        let collection = ["agentruns", "agentrunrecords", "pods", "secrets", "networkpolicies", "endpointslices"]
            .iter()
            .any(|plural| path.ends_with(&format!("/{plural}")));
        if !collection {
            return error(404, "NotFound", &format!("no {path}"));
        }
        let prefix = format!("{path}/");
        // The same of every namespace.
        let (group, plural) = path.rsplit_once('/').unwrap_or_default();
        let (anywhere, plural) = (format!("{group}/namespaces/"), format!("/{plural}/"));
        let listed = |key: &str| key.starts_with(&prefix) || (key.starts_with(&anywhere) && key.contains(&plural));
        let items: Vec<&Value> = self.objects.iter().filter(|(key, _)| listed(key)).map(|(_, object)| object).collect();
        (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": self.revision.to_string()}, "items": items}))
    }

    fn create(&mut self, path: &str, mut body: Value) -> (u16, Value) {
        let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let full = format!("{path}/{name}");
        if let Some((part, code, message)) = &self.refuse
            && path.contains(part)
        {
            let (code, mut answer) = error(*code, "Forbidden", message);
            if message.contains("it is being terminated") {
                answer["details"] =
                    json!({"causes": [{"reason": "NamespaceTerminating", "message": message, "field": "metadata.namespace"}]});
            }
            return (code, answer);
        }
        if self.objects.contains_key(&full) {
            return error(409, "AlreadyExists", "it is there");
        }
        if path.ends_with("/pods") {
            let deny = full.rsplit_once("/pods").map(|_| self.objects.keys().any(|key| key.ends_with("/agentrun-sandbox-deny")));
            if deny != Some(true) || !self.objects.keys().any(|key| key.ends_with(&format!("networkpolicies/{name}"))) {
                self.broken.push("a Pod was created before its NetworkPolicies".into());
            }
        }
        self.stamp(&full, &mut body);
        self.objects.insert(full, body.clone());
        (201, body)
    }

    fn patch(&mut self, path: &str, patch: &Value) -> (u16, Value) {
        let (base, status) = match path.strip_suffix("/status") {
            Some(base) => (base, true),
            None => (path, false),
        };
        let Some(mut object) = self.objects.get(base).cloned() else { return error(404, "NotFound", "gone") };
        let read = &patch["metadata"]["resourceVersion"];
        if read.is_null() {
            self.broken.push(format!("a patch without a resourceVersion: {path}"));
        } else if *read != object["metadata"]["resourceVersion"] {
            return error(409, "Conflict", "changed meanwhile");
        }
        let before = object.clone();
        merge(&mut object, patch);
        if status {
            let written = object["status"].take();
            object = before.clone();
            object["status"] = written;
            self.judge(&before["status"], &object["status"]);
        } else {
            object["status"] = before["status"].clone();
        }
        if object == before {
            self.broken.push(format!("a patch that changes nothing: {path}"));
        }
        self.stamp(base, &mut object);
        let finalizers = object["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        if !object["metadata"]["deletionTimestamp"].is_null() && !finalizers {
            self.objects.remove(base);
        } else {
            self.objects.insert(base.to_owned(), object.clone());
        }
        (200, object)
    }

    /// The rules that the CRD has for status.
    fn judge(&mut self, before: &Value, after: &Value) {
        let terminal = |status: &Value| ["Succeeded", "Failed", "Cancelled"].contains(&status["phase"].as_str().unwrap_or_default());
        let closed = |status: &Value| status["budget"]["gate"] == "Closed";
        if terminal(before) && before["phase"] != after["phase"] {
            self.broken.push(format!("a terminal phase changed from {} to {}", before["phase"], after["phase"]));
        }
        if closed(before) && !closed(after) {
            self.broken.push("a closed budget was opened".into());
        }
        if terminal(after) && !after["budget"].is_null() && !closed(after) {
            self.broken.push("a terminal run with an open budget".into());
        }
        for field in ["attempt", "podRef", "resolved", "ticketSha256", "startedAt"] {
            if !before[field].is_null() && before[field] != after[field] {
                self.broken.push(format!("status.{field} changed from {} to {}", before[field], after[field]));
            }
        }
    }

    fn replace(&mut self, path: &str, mut body: Value) -> (u16, Value) {
        let Some(object) = self.objects.get(path) else { return error(404, "NotFound", "gone") };
        if body["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
            return error(409, "Conflict", "changed meanwhile");
        }
        self.stamp(path, &mut body);
        self.objects.insert(path.to_owned(), body.clone());
        (200, body)
    }

    fn delete(&mut self, path: &str, options: &Value) -> (u16, Value) {
        if self.forbid.as_ref().is_some_and(|part| path.contains(part)) {
            return error(403, "Forbidden", "not allowed to delete");
        }
        let Some(mut object) = self.objects.get(path).cloned() else { return error(404, "NotFound", "gone") };
        let wanted = &options["preconditions"]["uid"];
        if !wanted.is_null() && *wanted != object["metadata"]["uid"] {
            return error(409, "Conflict", "another UID");
        }
        if path.contains("/pods/") && wanted.is_null() {
            self.broken.push("a Pod was deleted without its UID".into());
        }
        if path.contains("/networkpolicies/run-") && !self.objects.keys().all(|key| !key.contains("/pods/")) {
            self.broken.push("the NetworkPolicy went before the Pod".into());
        }
        let held = object["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        let grace = options["gracePeriodSeconds"].as_i64();
        let slow = path.contains("/pods/") && grace != Some(0);
        if !held && !slow {
            self.objects.remove(path);
            return (200, object);
        }
        if object["metadata"]["deletionTimestamp"].is_null() {
            let grace = grace.unwrap_or(0);
            object["metadata"]["deletionTimestamp"] = json!((self.now + SignedDuration::from_secs(grace)).to_string());
            object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            self.stamp(path, &mut object);
            self.objects.insert(path.to_owned(), object.clone());
        }
        (200, object)
    }
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

fn error(code: u16, reason: &str, message: &str) -> (u16, Value) {
    (code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}))
}
