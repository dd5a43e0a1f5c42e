//! Start, run, drain. Everything else is in the library.

use std::io::IsTerminal;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use agentrun_gateway::aggregated::{self, FrontProxy};
use agentrun_gateway::app::{AppState, Parts, operations_router, people_router, sandbox_router};
use agentrun_gateway::approvals::Expiry;
use agentrun_gateway::auth::TokenKeys;
use agentrun_gateway::budget::{CallLimits, Orphans, RateLimits};
use agentrun_gateway::clock::Clock;
use agentrun_gateway::config::Config;
use agentrun_gateway::events::LogRecorder;
use agentrun_gateway::git::Fetcher;
use agentrun_gateway::leader;
use agentrun_gateway::people::Site;
use agentrun_gateway::serve::{Listener, Stop, bind};
use agentrun_gateway::store::{Retention, Stores};
use agentrun_gateway::tls::follow_certificate;
use anyhow::Context;
use clap::Parser;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// People's connections are followers that resume by cursor; they need no long farewell.
const PEOPLE_DRAIN: Duration = Duration::from_secs(2);
/// For settlements and their events after the last connection.
const SETTLE_TIME: Duration = Duration::from_secs(10);

fn main() -> anyhow::Result<()> {
    let config = Config::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info,kube=warn".into());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    if config.log_json {
        log.json().init()
    } else {
        log.init()
    }
    // Only fails if one is installed already, and this is the first.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(config))
}

async fn serve(config: Config) -> anyhow::Result<()> {
    let mut ending = Ending { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? };
    let clock = Clock::system();
    let kube = client().await?;

    // Health first, so that waiting for Secrets is seen as starting rather than as dead.
    let ready: Arc<OnceLock<AppState>> = Arc::default();
    let operations_stop = Stop::default();
    let operations = Listener {
        name: "operations",
        tcp: bind("operations", config.operations_listen).await?,
        tls: None,
        router: operations_router(ready.clone()),
        max_connections: 64,
    };
    let operations = tokio::spawn(operations.serve(operations_stop.clone()));

    tracing::info!("waiting for the token keys and the serving certificate");
    let secrets = async {
        let keys = async { TokenKeys::follow(kube.clone(), config.namespace.clone()).await.context("these token keys cannot be used") };
        tokio::try_join!(keys, follow_certificate(kube.clone(), config.namespace.clone()))
    };
    let (keys, certificate) = tokio::select! {
        secrets = secrets => secrets?,
        () = ending.asked() => return Ok(()),
    };
    let stores = tokio::select! {
        stores = Stores::open(&config.data_dir, &config.store, &config.instance, clock.clone()) => stores.context("the stores cannot be opened")?,
        () = ending.asked() => return Ok(()),
    };
    let recorder = LogRecorder::new(stores.clone());
    let state = AppState::assemble(Parts {
        clock: clock.clone(),
        kube,
        namespace: config.namespace.clone(),
        instance: config.instance.clone(),
        keys,
        stores: stores.clone(),
        recorder: Arc::new(recorder.clone()),
        call_limits: CallLimits {
            rates: RateLimits { run: config.requests_per_minute_per_run, namespace: config.requests_per_minute_per_namespace },
            in_flight: config.max_in_flight_per_run,
        },
    });

    state.ledger.recover().await.context("the budget's ledger cannot be read")?;
    let proxy = state.model.clone();
    tokio::spawn(state.model.revocation.clone().heed_the_watch());
    tokio::spawn(state.runs.clone().run());
    tokio::spawn(state.policies.clone().run(state.kube.clone()));
    tokio::spawn(state.model.providers.clone().run());
    tokio::spawn(recorder.run(state.runs.clone()));
    let resign = CancellationToken::new();
    let (leader, campaign) = leader::campaign(state.kube.clone(), config.namespace.clone(), config.instance.clone(), resign.clone());
    tokio::spawn(Retention { days: config.store.retention_days }.run(stores, clock.clone(), leader.clone()));
    tokio::spawn(Expiry { status: state.status.clone(), directory: state.runs.clone(), clock: clock.clone() }.run());
    tokio::spawn(state.ledger.keep());
    tokio::spawn(Fetcher::new(&state, leader, config.data_dir.clone()).run());
    let longest_call = Box::new(move || proxy.longest_call());
    tokio::spawn(Orphans { ledger: state.ledger.clone(), accounts: state.accounts.clone(), clock, longest_call }.run());

    let tcp = bind("sandbox", config.sandbox_listen).await?;
    // The aggregated listener has people behind it too.
    let (sandbox_stop, people_stop) = (Stop::default(), Stop::default());
    let max_connections = config.max_connections;
    let tls = Some(certificate.server());
    let sandbox = Listener { name: "sandbox", tcp, tls: tls.clone(), router: sandbox_router(state.clone()), max_connections };
    let site = Site::new(&config.namespace, &config.allowed_hosts, &config.allowed_origins);
    let tcp = bind("people", config.people_listen).await?;
    let people = Listener { name: "people", tcp, tls, router: people_router(state.clone(), site), max_connections };
    let tcp = bind("aggregated", config.aggregated_listen).await?;
    let front_proxy = FrontProxy::default();
    tokio::spawn(front_proxy.clone().follow(state.kube.clone()));
    let tls = Some(certificate.server_for(Arc::new(front_proxy.clone())));
    let router = aggregated::router(state.clone(), front_proxy);
    let aggregated = Listener { name: "aggregated", tcp, tls, router, max_connections };
    tokio::select! {
        () = state.accounts.wait_synced() => {}
        () = ending.asked() => return Ok(()),
    }
    let mut sandbox = tokio::spawn(sandbox.serve(sandbox_stop.clone()));
    let (people, aggregated) = (people.serve(people_stop.clone()), aggregated.serve(people_stop.clone()));
    let mut people = tokio::spawn(async move { tokio::join!(people, aggregated) });
    let _ = ready.set(state.clone());
    tracing::info!(sandbox = %config.sandbox_listen, people = %config.people_listen, aggregated = %config.aggregated_listen, "serving");

    ending.asked().await;
    tracing::info!(delay = config.shutdown_delay_seconds, seconds = config.drain_seconds, "draining");
    state.start_draining();
    resign.cancel();
    sandbox_stop.leaving.cancel();
    people_stop.leaving.cancel();
    tokio::time::sleep(Duration::from_secs(config.shutdown_delay_seconds)).await;
    sandbox_stop.gently.cancel();
    people_stop.gently.cancel();
    if timeout(PEOPLE_DRAIN, &mut people).await.is_err() {
        people_stop.now.cancel();
        let _ = people.await;
    }
    if timeout(Duration::from_secs(config.drain_seconds), &mut sandbox).await.is_err() {
        tracing::warn!("calls still under way are broken off and charged in full");
        sandbox_stop.now.cancel();
        let _ = sandbox.await;
    }
    state.model.tasks.close();
    let settled = timeout(SETTLE_TIME, async {
        state.ledger.idle().await;
        state.model.tasks.wait().await;
        state.ledger.idle().await;
        state.recorder.flush().await;
    });
    if settled.await.is_err() {
        tracing::warn!("some settlements could not be written; the next start charges them in full");
    }
    let _ = campaign.await;
    operations_stop.now.cancel();
    let _ = operations.await;
    Ok(())
}

async fn client() -> anyhow::Result<kube::Client> {
    let mut config = kube::Config::infer().await.context("there is neither a kubeconfig nor a ServiceAccount")?;
    config.connect_timeout = Some(Duration::from_secs(5));
    Ok(kube::Client::try_from(config)?)
}

/// SIGTERM or SIGINT.
struct Ending {
    terminate: Signal,
    interrupt: Signal,
}

impl Ending {
    async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
