//! Starts the agent, hears it, and ends it: when it is done, when its run is over, or when the time is up.

use std::{sync::Arc, time::Duration};

use agentrun_crds::{agent_run_status::ResolvedHarness, agent_template::Bridge as BridgeKind};
use agentrun_protocol::{executor::ExecExit, job::Job, result::Outcome};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::{
    forward::Forward,
    hook::Hook,
    output::Heard,
    permission::Bridge,
    port::{Doors, Port},
    recipe::{self, Values},
    trouble::Calls,
};
use crate::{
    deadline::Deadline,
    events::Events,
    executor::{Executor, ExecutorError, Heard as Came},
    gateway::Gateway,
};

/// How long an agent may go on by itself once its run is over, to say so.
const LAST_WORDS: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(100);

/// How an agent's work ended.
pub struct HarnessEnd {
    pub outcome: Outcome,
    pub message: String,
    pub steps: i64,
    /// The agent did not end well. It counts where checks and changes decide nothing.
    pub doubt: Option<(Outcome, String)>,
    /// What it printed, for an artifact.
    pub log: String,
}

/// What an agent is supervised with.
pub struct Supervisor<'a> {
    pub harness: &'a ResolvedHarness,
    pub job: &'a Job,
    pub port: &'a Port,
    pub gateway: &'a Gateway,
    pub executor: &'a Executor,
    pub events: &'a Events,
    pub deadline: Deadline,
}

impl Supervisor<'_> {
    /// From its files to its end. Nothing of it runs any more, or is about to be killed, when this returns.
    pub async fn run(&self) -> HarnessEnd {
        let template = &self.harness.template;
        let calls = Arc::new(Calls::new(self.events.clone(), self.job.max_steps));
        let doors = Arc::new(Doors {
            model: Forward { dialect: template.dialect, gateway: self.gateway.clone(), calls: calls.clone() },
            hook: self.hook(&calls),
        });
        let prompt = recipe::prompt(self.job);
        let values = Values { prompt: &prompt, model: &self.job.model, port: self.port.url() };
        for (path, content) in recipe::files(template, &values) {
            if let Err(error) = self.executor.write_home(&path, content.as_bytes()).await {
                return unstarted(format!("the agent's file {path} could not be written: {error}"), &error);
            }
        }
        self.events.note(format!("the harness {} starts", self.harness.name));
        let mut heard = Heard::new(&template.output, self.events, calls.clone());
        let serving = AbortOnDropHandle::new(tokio::spawn(self.port.clone().serve(doors)));
        let ended = tokio::select! {
            biased;
            ended = self.follow(recipe::command(template, &values), &mut heard, &calls) => ended,
            () = self.deadline.passed() => Ok(Stopped::Early(Outcome::Deadline, "the wall time passed before the agent was done".into())),
        };
        drop(serving);
        let finished = heard.finish();
        let steps = calls.steps();
        let (outcome, message, doubt) = match ended {
            Err(error) => {
                let end = unstarted(format!("the agent {} could not be run: {error}", self.harness.name), &error);
                (end.outcome, end.message, None)
            }
            Ok(Stopped::Early(outcome, why)) => {
                self.events.note(format!("the agent is ended: {why}"));
                (outcome, why, None)
            }
            Ok(Stopped::Itself(exit)) => {
                let doubt = doubt(&exit, finished.failure, &calls);
                if let Some((_, why)) = &doubt {
                    self.events.note(why.clone());
                }
                (Outcome::Done, finished.message, doubt)
            }
        };
        HarnessEnd { outcome, message, steps, doubt, log: finished.log }
    }

    /// Hear the agent until it has ended, or its run is over and it had time to say so.
    async fn follow(
        &self,
        start: agentrun_protocol::executor::ExecStart,
        heard: &mut Heard<'_>,
        calls: &Calls,
    ) -> Result<Stopped, ExecutorError> {
        let mut process = self.executor.start(start);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut over = std::pin::pin!(calls.over());
        let mut ending: Option<(Instant, Outcome, String)> = None;
        loop {
            let until = ending.as_ref().map_or_else(Instant::now, |(until, ..)| *until);
            tokio::select! {
                _ = ticks.tick() => heard.tick(),
                came = process.next() => match came? {
                    Came::Output(stream, data) => heard.data(stream, &data),
                    Came::Ended(exit) => return Ok(match ending {
                        Some((_, outcome, why)) => Stopped::Early(outcome, why),
                        None => Stopped::Itself(exit),
                    }),
                },
                (outcome, why) = &mut over, if ending.is_none() => ending = Some((Instant::now() + LAST_WORDS, outcome, why)),
                () = sleep_until(until), if ending.is_some() => {
                    if let Some((_, outcome, why)) = ending {
                        return Ok(Stopped::Early(outcome, why));
                    }
                    unreachable!("just seen")
                }
            }
        }
    }

    fn hook(&self, calls: &Arc<Calls>) -> Option<Hook> {
        let permissions = &self.harness.template.permissions;
        let form = permissions.hook.clone().filter(|_| permissions.bridge == BridgeKind::Hook)?;
        let bridge = Bridge {
            gateway: self.gateway.clone(),
            executor: self.executor.clone(),
            events: self.events.clone(),
            deadline: self.deadline.clone(),
            rules: self.job.approvals.clone(),
            tools: permissions.tools.clone(),
            calls: calls.clone(),
        };
        Some(Hook { form, bridge })
    }
}

enum Stopped {
    /// It ended by itself.
    Itself(ExecExit),
    /// Its run is over.
    Early(Outcome, String),
}

fn unstarted(message: String, error: &ExecutorError) -> HarnessEnd {
    let outcome = match error {
        ExecutorError::Lost(_) => Outcome::ExecutorLost,
        refused if refused.is("no_space") => Outcome::WorkspaceFull,
        ExecutorError::Refused(_) => Outcome::AgentError,
    };
    HarnessEnd { outcome, message, steps: 0, doubt: None, log: String::new() }
}

/// Whether an agent that ended by itself ended well, as far as it can be told from itself and its model calls.
fn doubt(exit: &ExecExit, failure: Option<String>, calls: &Calls) -> Option<(Outcome, String)> {
    if exit.exit_code == 0 && failure.is_none() && calls.steps() > 0 && calls.provider().is_none() {
        return None;
    }
    let failed = match (failure, exit.exit_code) {
        (Some(said), code) => format!("the agent says that it failed (exit status {code}): {said}"),
        (None, 0) if calls.steps() == 0 => "the agent ended without having called its model".to_owned(),
        (None, 0) => "the agent ended with exit status 0".to_owned(),
        (None, code) => format!("the agent ended with exit status {code}"),
    };
    Some(match calls.provider() {
        Some((outcome, why)) => (outcome, format!("{failed}; its last model call failed: {why}")),
        None => (Outcome::AgentError, failed),
    })
}
