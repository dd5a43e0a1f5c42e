//! Start-up order, and nothing else.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use agentrun_crds::names;
use agentrun_operator::admin::{self, Health, Progress};
use agentrun_operator::agent_run::watches::Watches;
use agentrun_operator::agent_run::{expired_records, sweep};
use agentrun_operator::backoff::Backoff;
use agentrun_operator::config::{Config, Flags};
use agentrun_operator::context::{Context, Starts};
use agentrun_operator::leader::Leadership;
use agentrun_operator::metrics::Metrics;
use agentrun_operator::{aggregated, kinds, pki, telemetry};
use anyhow::Context as _;
use clap::Parser;
use kube::Client;
use kube::runtime::events::{Recorder, Reporter};
use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How long running reconciles may take to end.
const DRAIN: Duration = Duration::from_secs(8);

fn main() -> ExitCode {
    if let Some(status) = agentrun_operator::check::main(std::env::args()) {
        return status;
    }
    let config = match Flags::parse().check() {
        Ok(config) => config,
        Err(error) => {
            eprintln!("operator: {error}");
            return ExitCode::from(2);
        }
    };
    telemetry::install(config.log_json);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "the runtime could not be started");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(config: Config) -> anyhow::Result<()> {
    let Config { settings, candidate, manage_certificates, listen, log_json: _ } = config;
    rustls::crypto::aws_lc_rs::default_provider().install_default().map_err(|_| anyhow::anyhow!("a crypto provider is set already"))?;
    let client = client().await?;

    let stop = CancellationToken::new();
    on_signal(stop.clone())?;
    let health = Health::default();
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    let listener = tokio::net::TcpListener::bind(listen).await.with_context(|| format!("--listen {listen}"))?;
    let app = admin::router(health.clone(), Arc::new(registry));
    let serving = tokio::spawn(axum::serve(listener, app).with_graceful_shutdown(stop.clone().cancelled_owned()).into_future());

    health.set(Progress::Standby);
    tracing::info!(lease = candidate.lease, identity = candidate.identity, "waiting for the lease");
    let reporter = Reporter { controller: names::OPERATOR.into(), instance: Some(candidate.identity.clone()) };
    let mut leadership = tokio::select! {
        leadership = Leadership::acquire(client.clone(), candidate) => leadership,
        () = stop.cancelled() => return Ok(()),
    };
    tracing::info!("holding the lease");
    metrics.leader.set(1);

    let ctx = Arc::new(Context {
        client: client.clone(),
        recorder: Recorder::new(client.clone(), reporter),
        metrics: metrics.clone(),
        backoff: Backoff::default(),
        clock: Box::new(pki::keeper::system_clock),
        gateway: Default::default(),
        starts: Starts::default(),
        settings,
    });
    let work = tokio::spawn(work(Arc::clone(&ctx), health.clone(), manage_certificates, stop.clone()));
    let lost = tokio::select! {
        why = leadership.lost() => Some(why),
        () = stop.cancelled() => None,
    };
    if let Some(why) = lost {
        // Somebody else may work already: end at once, without letting anything finish.
        anyhow::bail!("the lease is lost: {why}");
    }
    tracing::info!("asked to stop; letting reconciles end");
    if tokio::time::timeout(DRAIN, work).await.is_err() {
        tracing::warn!("reconciles did not end in time");
    }
    metrics.leader.set(0);
    leadership.release().await;
    serving.abort();
    Ok(())
}

/// What a leader does.
async fn work(ctx: Arc<Context>, health: Health, manage_certificates: bool, stop: CancellationToken) {
    let background = stop.clone();
    let certificates = Arc::clone(&ctx);
    let keeping = tokio::spawn(async move {
        let keep = async {
            pki::token_keys::run(&certificates).await;
            if manage_certificates {
                pki::keeper::run(&certificates).await;
            }
        };
        background.run_until_cancelled(keep).await;
    });
    let registering = {
        let (ctx, stop) = (Arc::clone(&ctx), stop.clone());
        tokio::spawn(async move { stop.run_until_cancelled(Box::pin(aggregated::keeper::run(&ctx))).await })
    };
    let namespace = ctx.settings.namespace.clone();
    let waiting = kinds::wait(&ctx.client, &namespace, || health.set(Progress::NoKinds));
    if stop.run_until_cancelled(waiting).await.is_some() {
        health.set(Progress::Filling);
        let watches = Watches::new(&ctx.client, &namespace);
        let caches = Arc::clone(&watches.caches);
        let filled = watches.filled.clone();
        let sweeping = {
            let (ctx, caches, filled, stop) = (Arc::clone(&ctx), Arc::clone(&caches), filled.clone(), stop.clone());
            tokio::spawn(async move { stop.run_until_cancelled(sweep::run(&ctx, &caches, &filled)).await })
        };
        let pruning = {
            let (ctx, filled, stop) = (Arc::clone(&ctx), filled.clone(), stop.clone());
            let prune = async move {
                filled.wait().await;
                expired_records::run(&ctx).await;
            };
            tokio::spawn(async move { stop.run_until_cancelled(prune).await })
        };
        let filling = {
            let (health, stop) = (health.clone(), stop.clone());
            let all = async move {
                filled.wait().await;
                tracing::info!("watching");
                health.set(Progress::Working);
            };
            tokio::spawn(async move { stop.run_until_cancelled(all).await })
        };
        watches.run(ctx, stop).await;
        let _ended = tokio::join!(sweeping, pruning, filling);
    }
    let _ended = tokio::join!(keeping, registering);
}

/// A kubeconfig first, else the Pod's own account. Without the client's own retries: each reconcile has its backoff, and
/// under a constant 503 they would take minutes.
async fn client() -> anyhow::Result<Client> {
    let mut config = kube::Config::infer().await.context("neither a kubeconfig nor a Pod's account was found")?;
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.write_timeout = Some(Duration::from_secs(30));
    Client::try_from(config).context("the Kubernetes client could not be made")
}

fn on_signal(stop: CancellationToken) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    });
    Ok(())
}
