//! The sandbox listener as far as a runner can see it: TLS, the exchange with its signature checked, tokens by audience, and a
//! model that follows a script. It keeps all it was told.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use agentrun_crds::agent_run_status::ApprovalState;
use agentrun_protocol::{
    approval::{Action, ActionDocument, ApprovalAnswer, AskRequest, ConsumeRequest},
    event::{AppendRequest, AppendResponse, EventType, NewEvent},
    exchange::{ExchangeRequest, ExchangeResponse, RenewResponse, signing_input},
    job::Job,
    result::{ArtifactRequest, ResultResponse, SandboxResult},
    routes,
};
use agentrun_runner::{Config, confinement::ProcFacts, deadline::unix_now, network::Network, staging::digest};
use axum::{
    Json, Router,
    extract::{Path, Query, State},
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::sandbox::Place;

pub const TICKET: [u8; 32] = [0x5a; 32];
pub const POD_TOKEN: &str = "canary-pod-token";

/// What the model does next.
#[derive(Clone)]
pub enum Turn {
    Say(&'static str),
    /// Tools and their arguments as text.
    Use(Vec<(&'static str, String)>),
    /// A refusal, with a header.
    Refuse(u16, &'static str, Option<(&'static str, &'static str)>),
    /// This body, with status 200.
    Body(&'static str),
    /// Answer only when all tokens have been renewed.
    AwaitRenewal,
}

#[derive(Default)]
pub struct Seen {
    pub exchanges: Vec<ExchangeRequest>,
    pub requests: Vec<Value>,
    pub events: Vec<NewEvent>,
    pub event_tries: usize,
    pub blobs: BTreeMap<String, Bytes>,
    pub artifacts: BTreeMap<String, String>,
    pub result: Option<SandboxResult>,
    pub renewals: usize,
    pub unauthorised: usize,
    pub approvals: Vec<Asked>,
}

/// An approval, and what became of it.
#[derive(Clone)]
pub struct Asked {
    pub action: Action,
    pub state: ApprovalState,
    pub reason: Option<&'static str>,
    pub execution_id: Option<String>,
    pub asked_at: i64,
    /// When it was decided; the deadline stands still until then.
    pub decided_at: Option<i64>,
}

pub struct Gateway {
    job: Job,
    script: Mutex<VecDeque<Turn>>,
    /// Statuses that the exchange answers with first, after it has done its work.
    exchange_faults: Mutex<VecDeque<u16>>,
    exchange_fault_code: &'static str,
    /// The same for events and the result.
    pub faults: Mutex<VecDeque<u16>>,
    /// The same for approvals.
    pub approval_faults: Mutex<VecDeque<u16>>,
    lifetime: i64,
    pub seen: Mutex<Seen>,
    pub changed: Notify,
}

/// A gateway that listens, and the runner's configuration for it.
pub struct Running {
    pub gateway: Arc<Gateway>,
    pub config: Config,
}

pub struct Setup {
    pub job: Job,
    pub script: Vec<Turn>,
    pub exchange_faults: Vec<u16>,
    /// The code in their bodies.
    pub exchange_fault_code: &'static str,
    pub lifetime: i64,
}

impl Setup {
    pub async fn start(self, place: &Place) -> Running {
        let certified = rcgen::generate_simple_self_signed(["gateway.test".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
        let tls = rustls::ServerConfig::builder_with_provider(rustls::crypto::aws_lc_rs::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certified.cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let gateway = Arc::new(Gateway {
            job: self.job,
            script: Mutex::new(self.script.into()),
            exchange_faults: Mutex::new(self.exchange_faults.into()),
            exchange_fault_code: self.exchange_fault_code,
            faults: Mutex::default(),
            approval_faults: Mutex::default(),
            lifetime: self.lifetime,
            seen: Mutex::default(),
            changed: Notify::new(),
        });
        let app = router(gateway.clone());
        tokio::spawn(async move { axum::serve(Tls(listener, TlsAcceptor::from(Arc::new(tls))), app).await });

        std::fs::write(place.file("ticket"), TICKET).unwrap();
        std::fs::write(place.file("ca.crt"), certified.cert.pem()).unwrap();
        std::fs::write(place.file("token"), POD_TOKEN).unwrap();
        std::fs::write(place.file("hosts"), "127.0.0.1 gateway.test\n").unwrap();
        let config = Config {
            gateway: format!("https://gateway.test:{port}"),
            ticket_dir: place.file(""),
            pod_token: place.file("token"),
            socket: place.socket(),
            hosts: place.file("hosts"),
            // Nobody to try; tests name their own.
            network: Network { fenced: vec![], observed: vec![], patience: Duration::ZERO, period: Duration::from_millis(100) },
            lines: Arc::new(|_| {}),
        };
        Running { gateway, config }
    }
}

/// Facts of a process in a sandbox with every wall.
pub fn confined() -> ProcFacts {
    let zero = "0000000000000000";
    let status = format!(
        "Uid:\t1\t1\t1\t1\nCapInh:\t{zero}\nCapPrm:\t{zero}\nCapEff:\t{zero}\nCapBnd:\t{zero}\nCapAmb:\t{zero}\nNoNewPrivs:\t1\nSeccomp:\t2\n"
    );
    ProcFacts { status, uid_map: "0 100000 65536".into(), root_read_only: true, pid: 1, visible: vec![1] }
}

struct Tls(TcpListener, TlsAcceptor);

impl axum::serve::Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.0.accept().await.unwrap();
            if let Ok(stream) = self.1.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

fn router(gateway: Arc<Gateway>) -> Router {
    Router::new()
        .route(routes::EXCHANGE, post(exchange))
        .route(routes::RENEW, post(renew))
        .route(routes::JOB, get(job))
        .route(routes::SOURCE, get(source))
        .route(routes::EVENTS, post(events))
        .route(&format!("{}/{{digest}}", routes::BLOBS), put(blob))
        .route(routes::ARTIFACTS, post(artifact))
        .route(routes::RESULT, post(result))
        .route(routes::CHAT_COMPLETIONS, post(chat))
        .route(routes::APPROVALS, post(ask))
        .route(&format!("{}/{{id}}", routes::APPROVALS), get(wait))
        .route(&format!("{}/{{id}}/consume", routes::APPROVALS), post(consume))
        .layer(axum::extract::DefaultBodyLimit::max(16 << 20))
        .with_state(gateway)
}

impl Gateway {
    fn token(&self, audience: &str) -> String {
        format!("canary-{audience}-{}", self.seen.lock().unwrap().renewals / 3)
    }

    fn allow(&self, headers: &HeaderMap, audiences: &[&str]) -> Result<(), Response> {
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if audiences.iter().any(|audience| given.starts_with(&format!("Bearer canary-{audience}-"))) {
            return Ok(());
        }
        self.seen.lock().unwrap().unauthorised += 1;
        Err(refuse(401, "inactive_run_token", None))
    }

    fn fault(&self) -> Result<(), Response> {
        self.faults.lock().unwrap().pop_front().map_or(Ok(()), |status| Err(refuse(status, "fault", None)))
    }

    fn approval_fault(&self) -> Result<(), Response> {
        self.approval_faults.lock().unwrap().pop_front().map_or(Ok(()), |status| Err(refuse(status, "fault", None)))
    }

    fn digest(&self, action: &Action) -> String {
        ActionDocument::new(&self.job.run_uid, self.job.attempt, "policy", action).digest()
    }

    fn answer(&self, id: usize) -> Result<Json<ApprovalAnswer>, Response> {
        let seen = self.seen.lock().unwrap();
        let asked = seen.approvals.get(id.wrapping_sub(1)).ok_or_else(|| refuse(404, "not_found", None))?;
        let waited = asked.decided_at.unwrap_or_else(unix_now) - asked.asked_at;
        Ok(Json(ApprovalAnswer {
            id: id as i64,
            digest: self.digest(&asked.action),
            state: asked.state,
            expires_at: asked.asked_at + 600,
            reason: asked.reason.map(str::to_owned),
            deadline: self.job.deadline + waited,
        }))
    }

    /// A person decides, or nobody did.
    pub fn decide(&self, id: usize, state: ApprovalState, reason: Option<&'static str>) {
        let mut seen = self.seen.lock().unwrap();
        let asked = &mut seen.approvals[id - 1];
        assert_eq!(asked.state, ApprovalState::Pending);
        (asked.state, asked.reason, asked.decided_at) = (state, reason, Some(unix_now()));
        drop(seen);
        self.changed.notify_waiters();
    }

    /// Until so many approvals have been asked for.
    pub async fn asked(&self, count: usize) -> Action {
        loop {
            let changed = self.changed.notified();
            if let Some(asked) = self.seen.lock().unwrap().approvals.get(count - 1) {
                return asked.action.clone();
            }
            changed.await;
        }
    }

    pub fn script_is_done(&self) -> bool {
        self.script.lock().unwrap().is_empty()
    }

    pub fn events_of(&self, kind: EventType) -> Vec<Value> {
        let seen = self.seen.lock().unwrap();
        seen.events.iter().filter(|event| event.kind == kind).map(|event| event.data.clone()).collect()
    }

    pub fn artifact(&self, name: &str) -> String {
        let seen = self.seen.lock().unwrap();
        let digest = seen.artifacts.get(name).unwrap_or_else(|| panic!("no artifact {name}: {:?}", seen.artifacts.keys()));
        String::from_utf8(seen.blobs[digest].to_vec()).unwrap()
    }
}

fn refuse(status: u16, code: &str, extra: Option<(&'static str, &'static str)>) -> Response {
    let body = json!({"error": {"code": code, "message": format!("refused with {status}")}});
    let mut response = (StatusCode::from_u16(status).unwrap(), Json(body)).into_response();
    if let Some((name, value)) = extra {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}

type Shared = State<Arc<Gateway>>;

async fn exchange(State(gateway): Shared, Json(request): Json<ExchangeRequest>) -> Response {
    let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).unwrap();
    let key: [u8; 32] = decode(&request.public_key).try_into().unwrap();
    let nonce: [u8; 16] = decode(&request.nonce).try_into().unwrap();
    assert_eq!((decode(&request.ticket), request.pod_token.as_str()), (TICKET.to_vec(), POD_TOKEN));
    aws_lc_rs::signature::UnparsedPublicKey::new(&aws_lc_rs::signature::ED25519, key)
        .verify(&signing_input(&TICKET, POD_TOKEN, &key, &nonce), &decode(&request.signature))
        .expect("the signature must be good");
    gateway.seen.lock().unwrap().exchanges.push(request);
    if let Some(status) = gateway.exchange_faults.lock().unwrap().pop_front() {
        return refuse(status, gateway.exchange_fault_code, None);
    }
    Json(ExchangeResponse {
        model_token: gateway.token("model"),
        events_token: gateway.token("events"),
        approvals_token: gateway.token("approvals"),
        expires_at: unix_now() + gateway.lifetime,
    })
    .into_response()
}

async fn renew(State(gateway): Shared, headers: HeaderMap) -> Result<Json<RenewResponse>, Response> {
    gateway.allow(&headers, &["model", "events", "approvals"])?;
    let given = headers[header::AUTHORIZATION].to_str().unwrap().to_owned();
    let audience = given.split('-').nth(1).unwrap().to_owned();
    gateway.seen.lock().unwrap().renewals += 1;
    gateway.changed.notify_waiters();
    Ok(Json(RenewResponse { token: format!("canary-{audience}-renewed"), expires_at: unix_now() + 900 }))
}

async fn job(State(gateway): Shared, headers: HeaderMap) -> Result<Json<Job>, Response> {
    gateway.allow(&headers, &["events"])?;
    Ok(Json(gateway.job.clone()))
}

/// The blob that the job names.
async fn source(State(gateway): Shared, headers: HeaderMap) -> Response {
    if let Err(refusal) = gateway.allow(&headers, &["events"]).and_then(|()| gateway.fault()) {
        return refusal;
    }
    let seen = gateway.seen.lock().unwrap();
    match gateway.job.archive.as_ref().and_then(|digest| seen.blobs.get(digest)) {
        Some(archive) => archive.clone().into_response(),
        None => refuse(404, "not_found", None),
    }
}

async fn events(State(gateway): Shared, headers: HeaderMap, Json(request): Json<AppendRequest>) -> Result<Json<AppendResponse>, Response> {
    gateway.allow(&headers, &["events"])?;
    let mut seen = gateway.seen.lock().unwrap();
    seen.event_tries += 1;
    let mut seqs = Vec::new();
    for event in request.events {
        assert!(event.kind.from_sandbox());
        let known = seen.events.iter().position(|old| old.key == event.key);
        let at = known.unwrap_or_else(|| {
            seen.events.push(event.clone());
            seen.events.len() - 1
        });
        assert_eq!(seen.events[at], event, "the same key must have the same body");
        seqs.push(at as i64 + 1);
    }
    drop(seen);
    gateway.changed.notify_waiters();
    // After the events were taken: the answer is lost.
    gateway.fault()?;
    Ok(Json(AppendResponse { seqs }))
}

async fn blob(State(gateway): Shared, headers: HeaderMap, Path(name): Path<String>, body: Bytes) -> Result<StatusCode, Response> {
    gateway.allow(&headers, &["events"])?;
    assert_eq!(digest(&body), name);
    gateway.seen.lock().unwrap().blobs.insert(name, body);
    Ok(StatusCode::NO_CONTENT)
}

async fn artifact(State(gateway): Shared, headers: HeaderMap, Json(request): Json<ArtifactRequest>) -> Result<StatusCode, Response> {
    gateway.allow(&headers, &["events"])?;
    let mut seen = gateway.seen.lock().unwrap();
    assert!(seen.blobs.contains_key(&request.digest));
    assert_eq!(seen.artifacts.insert(request.name, request.digest), None);
    Ok(StatusCode::NO_CONTENT)
}

async fn result(State(gateway): Shared, headers: HeaderMap, Json(result): Json<SandboxResult>) -> Result<Json<ResultResponse>, Response> {
    gateway.allow(&headers, &["events"])?;
    let mut seen = gateway.seen.lock().unwrap();
    if let Some(before) = &seen.result {
        assert_eq!(before, &result, "a repeated result must be the same");
    }
    seen.result = Some(result);
    drop(seen);
    gateway.fault()?;
    Ok(Json(ResultResponse { verdict: "Succeeded".into(), message: String::new() }))
}

async fn chat(State(gateway): Shared, headers: HeaderMap, Json(request): Json<Value>) -> Result<Response, Response> {
    gateway.allow(&headers, &["model"])?;
    gateway.seen.lock().unwrap().requests.push(request);
    let turn = gateway.script.lock().unwrap().pop_front();
    let answer = |message: Value| {
        let usage = json!({"prompt_tokens": 10, "completion_tokens": 3});
        Json(json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})).into_response()
    };
    Ok(match turn {
        None => panic!("the script has ended"),
        Some(Turn::Say(text)) => answer(json!({"role": "assistant", "content": text})),
        Some(Turn::Use(calls)) => {
            let calls: Vec<Value> = calls
                .into_iter()
                .enumerate()
                .map(|(number, (name, arguments))| {
                    json!({"id": format!("c{number}"), "type": "function", "function": {"name": name, "arguments": arguments}})
                })
                .collect();
            answer(json!({"role": "assistant", "content": null, "tool_calls": calls}))
        }
        Some(Turn::Refuse(status, code, header)) => refuse(status, code, header),
        Some(Turn::Body(body)) => body.into_response(),
        Some(Turn::AwaitRenewal) => {
            loop {
                let changed = gateway.changed.notified();
                if gateway.seen.lock().unwrap().renewals >= 3 {
                    break;
                }
                changed.await;
            }
            answer(json!({"role": "assistant", "content": "renewed"}))
        }
    })
}

async fn ask(State(gateway): Shared, headers: HeaderMap, Json(request): Json<AskRequest>) -> Result<Json<ApprovalAnswer>, Response> {
    gateway.allow(&headers, &["approvals"])?;
    let mut seen = gateway.seen.lock().unwrap();
    for text in &request.action.texts {
        match &text.inline {
            Some(inline) => assert_eq!(digest(inline.as_bytes()), text.digest),
            None => assert!(seen.blobs.contains_key(&text.digest), "a text that is not inline must have been uploaded"),
        }
    }
    let open = |asked: &Asked| matches!(asked.state, ApprovalState::Pending | ApprovalState::Allowed);
    let standing = seen.approvals.iter().position(|asked| open(asked) && gateway.digest(&asked.action) == gateway.digest(&request.action));
    let at = standing.unwrap_or_else(|| {
        let (action, state) = (request.action, ApprovalState::Pending);
        seen.approvals.push(Asked { action, state, reason: None, execution_id: None, asked_at: unix_now(), decided_at: None });
        seen.approvals.len() - 1
    });
    drop(seen);
    gateway.changed.notify_waiters();
    // After it was recorded: the answer is lost.
    gateway.approval_fault()?;
    gateway.answer(at + 1)
}

async fn wait(
    State(gateway): Shared,
    headers: HeaderMap,
    Path(id): Path<usize>,
    Query(query): Query<BTreeMap<String, u64>>,
) -> Result<Json<ApprovalAnswer>, Response> {
    gateway.allow(&headers, &["approvals"])?;
    gateway.approval_fault()?;
    let decided = async {
        loop {
            let changed = gateway.changed.notified();
            if gateway.answer(id)?.state != ApprovalState::Pending {
                return Ok(());
            }
            changed.await;
        }
    };
    let _: Result<Result<(), Response>, _> = tokio::time::timeout(Duration::from_secs(query["wait"]), decided).await;
    gateway.answer(id)
}

async fn consume(
    State(gateway): Shared,
    headers: HeaderMap,
    Path(id): Path<usize>,
    Json(request): Json<ConsumeRequest>,
) -> Result<Json<ApprovalAnswer>, Response> {
    gateway.allow(&headers, &["approvals"])?;
    let mut seen = gateway.seen.lock().unwrap();
    let asked = seen.approvals.get_mut(id - 1).ok_or_else(|| refuse(404, "not_found", None))?;
    if gateway.digest(&asked.action) != gateway.digest(&request.action) {
        return Err(refuse(409, "digest_mismatch", None));
    }
    match (asked.state, &asked.execution_id) {
        (ApprovalState::Allowed, None) => (asked.state, asked.execution_id) = (ApprovalState::Consumed, Some(request.execution_id)),
        (ApprovalState::Consumed, Some(before)) if *before == request.execution_id => {}
        _ => return Err(refuse(409, "already_consumed", None)),
    }
    drop(seen);
    gateway.approval_fault()?;
    gateway.answer(id)
}
