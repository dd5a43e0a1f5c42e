//! One attempt from start to end, in order: attest, bind the socket, see that the network is closed, exchange, fetch the job, stage, work, check, collect, report.

use std::{path::PathBuf, time::Duration};

use agentrun_crds::conditions::Reason;
use agentrun_protocol::{
    job::Job,
    result::{Outcome, ResultResponse, SandboxResult},
    routes,
};
use http::Method;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    agent::{Agent, Progress},
    base_commit,
    changes::{Changes, collect},
    checks::{self, Checked},
    clip::first_chars,
    confinement::{ProcFacts, attest},
    connection::{Listening, listen},
    credentials::Credentials,
    deadline::{Deadline, unix_now},
    events::{Events, Lines},
    exchange::exchange,
    executor::{Executor, ExecutorError},
    gateway::{CallError, Gateway, Transport},
    harness::{Port, Supervisor},
    network::{Network, hold, watch},
    report::{Report, pretty},
    staging::{Base, fetch, stage},
    termination::Failed,
};

const EXECUTOR_PATIENCE: Duration = Duration::from_secs(120);
const JOB_PATIENCE: Duration = Duration::from_secs(60);
const FLUSH_PATIENCE: Duration = Duration::from_secs(10);
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// A result is offered for so long even if the deadline has passed: the operator decides what it is worth.
const REPORT_PATIENCE: Duration = Duration::from_secs(60);
const MAX_MESSAGE_CHARS: usize = 1024;

/// Where everything is.
#[derive(Clone)]
pub struct Config {
    /// `https://host:port`
    pub gateway: String,
    pub ticket_dir: PathBuf,
    pub pod_token: PathBuf,
    pub socket: PathBuf,
    /// A hosts file that names the gateway.
    pub hosts: PathBuf,
    /// Who must be out of reach.
    pub network: Network,
    /// What happens, for `kubectl logs`.
    pub lines: Lines,
}

/// Run the attempt. Ok: a result was accepted, whatever its verdict.
pub async fn run(config: Config, facts: &ProcFacts, stop: CancellationToken) -> Result<ResultResponse, Failed> {
    let walls = attest(facts)?;
    let events = Events::new(config.lines.clone());
    let work = async {
        let listening = listen(&config.socket)
            .map_err(|error| Failed::new(Reason::SandboxLost, format!("--socket {}: {error}", config.socket.display())))?;
        let credentials =
            Credentials::read(&config.ticket_dir, &config.pod_token).map_err(|error| Failed::new(Reason::SandboxLost, error))?;
        let hosts = std::fs::read_to_string(&config.hosts)
            .map_err(|error| Failed::new(Reason::SandboxLost, format!("{}: {error}", config.hosts.display())))?;
        let transport =
            Transport::new(&config.gateway, &credentials.ca, &hosts).map_err(|error| Failed::new(Reason::SandboxLost, error))?;
        let probes = hold(&config.network, transport.address()).await;
        let (gateway, expires_at) = exchange(&transport, credentials, walls, probes).await?;
        let _renewal = AbortOnDropHandle::new(tokio::spawn(gateway.tokens.clone().keep_fresh(transport, expires_at)));
        let sending = AbortOnDropHandle::new(tokio::spawn(events.clone().send_all(gateway.clone())));
        let outcome = tokio::select! {
            outcome = attempt(&gateway, &events, listening) => outcome,
            failed = watch(&config.network) => {
                events.note(&failed.message);
                events.flush(STOP_PATIENCE).await;
                Err(failed)
            }
        };
        drop(sending);
        outcome
    };
    tokio::select! {
        outcome = work => outcome,
        // Dropping the work cancels what runs in the executor and closes its connection.
        () = stopped(&stop, &events) => Err(Failed::new(Reason::Cancelled, "the Pod was asked to end")),
    }
}

/// The last events go out while the work is still there to send them.
async fn stopped(stop: &CancellationToken, events: &Events) {
    stop.cancelled().await;
    events.note("the Pod was asked to end");
    events.flush(STOP_PATIENCE).await;
}

async fn attempt(gateway: &Gateway, events: &Events, listening: Listening) -> Result<ResultResponse, Failed> {
    let job: Job = gateway
        .json(Method::GET, routes::JOB, None::<&()>, Instant::now() + JOB_PATIENCE)
        .await
        .map_err(|error| Failed::new(Reason::StartupDeadlineExceeded, format!("the job could not be fetched: {error}")))?;
    let deadline = Deadline::new(job.deadline, unix_now());
    let patience = EXECUTOR_PATIENCE.min(deadline.left());
    // Before anything of the source is here that could take it.
    let port = match &job.harness {
        None => None,
        Some(_) => {
            let bound = Port::bind().await;
            Some(bound.map_err(|error| Failed::new(Reason::SandboxLost, format!("no loopback port could be bound: {error}")))?)
        }
    };
    let progress = Progress::new(&job, [].into_iter());
    let mut attempt = Attempt { gateway, events, deadline, progress, port, job, checked: Vec::new(), log: None };

    let outcome = match listening.accept(patience).await {
        Err(why) => Ended::without_changes(Outcome::ExecutorLost, why),
        Ok((connection, _hello)) => {
            let executor = Closing(Executor::new(connection));
            attempt.work(&executor.0).await
        }
    };
    attempt.report(outcome).await
}

/// Closes the executor's connection however the work ends.
struct Closing(Executor);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// How the work ended.
struct Ended {
    outcome: Outcome,
    message: String,
    changes: Changes,
}

impl Ended {
    fn without_changes(outcome: Outcome, message: String) -> Self {
        // Nothing is claimed, so nothing can be missing from it; the outcome alone fails the run.
        Ended { outcome, message, changes: Changes::default() }
    }
}

struct Attempt<'a> {
    gateway: &'a Gateway,
    events: &'a Events,
    deadline: Deadline,
    progress: Progress,
    /// For the harness, where one works.
    port: Option<Port>,
    job: Job,
    checked: Vec<Checked>,
    /// What the harness printed.
    log: Option<String>,
}

impl Attempt<'_> {
    fn reporting(&self) -> Report<'_> {
        let until = self.deadline.end().max(Instant::now() + REPORT_PATIENCE);
        Report { gateway: self.gateway, events: self.events, until }
    }

    async fn work(&mut self, executor: &Executor) -> Ended {
        let staged = async { stage(executor, &self.job, fetch(self.gateway, &self.job, self.deadline.work_until()).await?).await };
        let base = match staged.await {
            Ok(base) => base,
            Err((outcome, message)) => return Ended::without_changes(outcome, message),
        };
        self.progress = Progress::new(&self.job, base.keys().map(String::as_str));
        match base_commit::commit(executor).await {
            Ok(true) => {}
            Ok(false) => self.events.note("the image has no git; there is no base commit"),
            Err(why) => self.events.note(format!("there is no base commit: {why}")),
        }
        let (mut outcome, mut message, doubt) = match (&self.job.harness, &self.port) {
            (Some(harness), Some(port)) => {
                let Attempt { gateway, events, job, .. } = &*self;
                let supervisor = Supervisor { harness, job, port, gateway, executor, events, deadline: self.deadline.clone() };
                let end = supervisor.run().await;
                self.progress.steps = end.steps;
                self.log = Some(end.log);
                (end.outcome, end.message, end.doubt)
            }
            _ => {
                let agent = Agent {
                    gateway: self.gateway,
                    executor,
                    events: self.events,
                    deadline: self.deadline.clone(),
                    rules: self.job.approvals.as_ref(),
                    max_steps: self.job.max_steps,
                };
                let (outcome, message) = agent.run(&mut self.progress).await;
                (outcome, message, None)
            }
        };
        // What the harness left behind is gone before the checks run.
        if self.log.is_some()
            && let Err(lost) = executor.quiet().await
        {
            return Ended::without_changes(Outcome::ExecutorLost, lost.to_string());
        }
        if matches!(outcome, Outcome::Done | Outcome::StepLimit)
            && let Err((cut_short, why)) = checks::run(executor, self.events, &self.deadline, &self.job.checks, &mut self.checked).await
        {
            (outcome, message) = (cut_short, why);
        }
        match self.changes(executor, &base).await {
            Ok(changes) => {
                // How a harness ended counts only where nothing else decides.
                if let Some((worse, why)) = doubt
                    && outcome == Outcome::Done
                    && (changes.changes.is_empty() || self.job.checks.is_empty())
                {
                    (outcome, message) = (worse, why);
                }
                Ended { outcome, message, changes }
            }
            Err(lost) => Ended::without_changes(Outcome::ExecutorLost, lost.to_string()),
        }
    }

    async fn changes(&self, executor: &Executor, base: &Base) -> Result<Changes, ExecutorError> {
        let report = self.reporting();
        collect(executor, base, async |digest: String, content| report.blob(&digest, content).await.map_err(|error| error.to_string()))
            .await
    }

    async fn report(mut self, ended: Ended) -> Result<ResultResponse, Failed> {
        let Ended { outcome, message, changes } = ended;
        let checked = std::mem::take(&mut self.checked);
        let log = self.log.take();
        let report = self.reporting();
        let checks = report.checks(checked).await;
        report.request(&self.job).await;
        match log {
            Some(log) => report.artifact("harness.log", log.into()).await,
            None => report.artifact("transcript.ndjson", self.progress.conversation.transcript()).await,
        };
        let paths: Vec<&str> = changes.changes.iter().map(|change| change.path.as_str()).collect();
        let checkpoint = json!({
            "outcome": outcome, "step": self.progress.steps, "changedPaths": paths,
            "inputTokens": self.progress.input_tokens, "outputTokens": self.progress.output_tokens,
        });
        report.artifact("checkpoint.json", pretty(&checkpoint)).await;

        let manifest_complete = changes.complete();
        let message = match manifest_complete {
            true => message,
            false => format!("not all of the workspace can be in a patch ({}). {message}", changes.problems.join("; ")),
        };
        let result = SandboxResult {
            run_uid: self.job.run_uid.clone(),
            attempt: self.job.attempt,
            outcome,
            message: first_chars(&message, MAX_MESSAGE_CHARS),
            steps: self.progress.steps,
            checks,
            changes: changes.changes,
            manifest_complete,
        };
        if let Ok(value) = serde_json::to_value(&result) {
            report.artifact("result.json", pretty(&value)).await;
        }
        if !self.events.flush(FLUSH_PATIENCE).await {
            self.events.say("some events did not reach the gateway");
        }
        report.result(&result).await.map_err(undelivered)
    }
}

fn undelivered(error: CallError) -> Failed {
    let reason = match error {
        CallError::Refused { status: 400 | 413 | 422, .. } => Reason::ResultInvalid,
        _ => Reason::SandboxLost,
    };
    Failed::new(reason, format!("the result could not be delivered: {error}"))
}
