//! A proxy between one of our processes and the API server that fails in the ways in which API servers fail: each kind of write
//! is refused, or cut off before or after it was committed, or sent twice; watches are dropped, repeated, declared too old.
//! It also counts writes, so that a process can be killed right after any of them.

mod fault;
mod serve;
mod site;

pub use fault::{Fault, WatchFault};
pub use site::Site;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::api_server::ApiServer;

/// What is done to the process behind it after a write.
type Crash = Box<dyn FnOnce() + Send>;

/// The proxy of one process. It ends with this.
pub struct FaultProxy {
    /// A kubeconfig that goes through it.
    pub kubeconfig: PathBuf,
    state: Arc<State>,
    serving: tokio::task::JoinHandle<()>,
}

/// What is to go wrong, and what has gone by.
#[derive(Default)]
struct Plan {
    /// Meets the first write at each site.
    fault: Option<Fault>,
    watches: Option<WatchFault>,
    /// Watches that began since the plan was made, by path.
    disturbed: BTreeMap<String, usize>,
    /// Writes that came since the plan was made.
    seen: BTreeMap<Site, usize>,
    /// Where `fault` was met.
    met: BTreeSet<Site>,
    /// Committed writes since the plan was made.
    writes: usize,
    /// After so many committed writes, before the answer.
    crash: Option<(usize, Crash)>,
}

struct State {
    upstream: reqwest::Client,
    base: String,
    plan: Mutex<Plan>,
    /// Moves when the plan for watches changes; open watches end then, and so meet it.
    changed: watch::Sender<u64>,
}

impl State {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FaultProxy {
    /// Before this API server, for a process of this name.
    pub async fn start(server: &ApiServer, name: &str) -> Result<FaultProxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let kubeconfig = server.write_kubeconfig_through(name, &url)?;
        let authority = reqwest::Certificate::from_pem(server.ca_pem().as_bytes())?;
        let upstream = reqwest::Client::builder().tls_certs_only([authority]).build()?;
        let (changed, _) = watch::channel(0);
        let state = Arc::new(State { upstream, base: server.url().to_owned(), plan: Mutex::default(), changed });
        let serving = tokio::spawn(serve::run(listener, state.clone()));
        Ok(FaultProxy { kubeconfig, state, serving })
    }

    /// From now on the first write at each site meets this.
    pub fn inject(&self, fault: Option<Fault>) {
        self.replace(Plan { fault, ..Plan::default() });
    }

    /// From now on every watch meets this; those that are open end.
    pub fn disturb(&self, watches: Option<WatchFault>) {
        self.replace(Plan { watches, ..Plan::default() });
        self.state.changed.send_modify(|number| *number += 1);
    }

    /// After the `number`th write from now on (from 1), whose answer is lost.
    pub fn crash_after(&self, number: usize, crash: impl FnOnce() + Send + 'static) {
        self.replace(Plan { crash: Some((number, Box::new(crash))), ..Plan::default() });
    }

    /// Whether that write has come.
    pub fn has_crashed(&self) -> bool {
        self.state.plan().crash.is_none()
    }

    /// Writes that came since the last change of plan.
    pub fn seen(&self) -> BTreeMap<Site, usize> {
        self.state.plan().seen.clone()
    }

    /// Where the fault was met.
    pub fn met(&self) -> BTreeSet<Site> {
        self.state.plan().met.clone()
    }

    fn replace(&self, plan: Plan) {
        *self.state.plan() = plan;
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
