//! Before a tool call is performed: the rules of the job let it through, refuse it, or have a person asked. What was allowed is
//! consumed for what is there now, once, and only then performed.

use std::time::Duration;

use agentrun_crds::agent_run_status::ApprovalState;
use agentrun_crds::approval_rules::{Asked, RuleDecision, judge};
use agentrun_protocol::{
    approval::{Action, ApprovalAnswer, AskRequest, ConsumeRequest, MAX_WAIT_SECONDS},
    job::JobApprovals,
    routes,
    token::Audience,
};
use aws_lc_rs::rand;
use http::Method;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::{
    approval_action::{files, take_long_texts},
    clip::{first_chars, printable},
    deadline::{Deadline, unix_now},
    events::Events,
    executor::{Executor, ExecutorError},
    gateway::{CallError, Gateway},
    report::Report,
};

/// A gateway that does not answer one call is asked again for so long, if there is time.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two rounds of asking a gateway that is away.
const PAUSE: Duration = Duration::from_secs(1);
/// After an approval's end, for a gateway that was away then.
const EXPIRY_GRACE_SECONDS: i64 = 30;

/// Whether a call may be performed.
#[derive(Debug, PartialEq, Eq)]
pub enum Clearance {
    /// No person is needed.
    Free,
    /// A person allowed it, and this use of it is recorded.
    Allowed(i64),
    /// What the model is told instead.
    Refused(String),
}

/// Who asks.
pub struct Approvals<'a> {
    pub gateway: &'a Gateway,
    pub executor: &'a Executor,
    pub events: &'a Events,
    pub deadline: &'a Deadline,
    pub rules: &'a JobApprovals,
}

/// Why nothing more can be done for this call.
type Refusal = String;

impl Approvals<'_> {
    /// Waits for a person where one is needed. The action comes without its files. Errors only when the executor is lost.
    pub async fn clear(&self, wanted: &Action) -> Result<Clearance, ExecutorError> {
        let action = wanted.clone();
        let asked = Asked { tool: &action.tool, argv: &action.argv, path: action.path.as_deref() };
        match judge(&self.rules.policy_rules, &self.rules.run_rules, &asked) {
            RuleDecision::Allow => return Ok(Clearance::Free),
            RuleDecision::Deny => return Ok(Clearance::Refused("not done: the rules of this run deny it; do without".into())),
            RuleDecision::Ask => {}
        }
        let action = match self.bound(action).await? {
            Ok(action) => action,
            Err(why) => return Ok(Clearance::Refused(format!("not done: {why}"))),
        };
        let decided = tokio::select! {
            biased;
            // Nobody need decide for a sandbox that is lost.
            lost = self.executor.lost() => return Err(lost),
            decided = self.decided(&action) => decided,
        };
        let id = match decided {
            Ok(id) => id,
            Err(why) => return Ok(Clearance::Refused(format!("not done: {why}"))),
        };
        // What is performed is what the call says and the files hold now, not what was sent when it was asked for.
        let now = match self.bound(wanted.clone()).await? {
            Ok(action) => action,
            Err(why) => return Ok(Clearance::Refused(format!("not done: {why}"))),
        };
        Ok(match self.consume(id, now).await {
            Ok(()) => Clearance::Allowed(id),
            Err(why) => Clearance::Refused(format!("not done: {why}")),
        })
    }

    /// With the files that it rests on, and its long texts where the gateway finds them.
    async fn bound(&self, mut action: Action) -> Result<Result<Action, Refusal>, ExecutorError> {
        action.files = match files(self.executor, &action).await? {
            Ok(files) => files,
            Err(why) => return Ok(Err(why)),
        };
        let report = Report { gateway: self.gateway, events: self.events, until: self.until() };
        for (digest, content) in take_long_texts(&mut action) {
            if let Err(error) = report.blob(&digest, content.into()).await {
                return Ok(Err(format!("what has to be shown could not be uploaded: {error}")));
            }
        }
        Ok(Ok(action))
    }

    /// Ask, and wait until a person allows it; the approval's number.
    async fn decided(&self, action: &Action) -> Result<i64, Refusal> {
        let request = AskRequest { action: action.clone() };
        let mut answer = self.call(Method::POST, routes::APPROVALS, Some(&request)).await.map_err(|error| match error {
            CallError::Refused { code, .. } if code == "action_denied" => "the rules of this run deny it; do without".to_owned(),
            error => format!("approval could not be asked for: {error}"),
        })?;
        let id = answer.id;
        let what = if action.argv.is_empty() { action.path.clone().unwrap_or_default() } else { action.argv.join(" ") };
        if answer.state == ApprovalState::Pending {
            self.events.note(format!("waits for approval {id}: {} {}", action.tool, first_chars(&printable(&what), 256)));
        }
        loop {
            self.deadline.moved_to(answer.deadline);
            let reason = answer.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
            match answer.state {
                ApprovalState::Pending => {}
                ApprovalState::Allowed => {
                    self.events.note(format!("approval {id} was given{reason}"));
                    return Ok(id);
                }
                ApprovalState::Denied => return Err(self.told(format!("a person denied it (approval {id}){reason}"))),
                ApprovalState::Expired => {
                    return Err(self.told(format!("nobody approved it in time (approval {id}); that counts as denied")));
                }
                ApprovalState::Consumed => return Err(self.told(format!("approval {id} was used already"))),
            }
            // While the wall time stands still, each answer moves the deadline; so one must come before it.
            let wait = (self.deadline.left().as_secs() / 2).clamp(1, MAX_WAIT_SECONDS);
            let path = format!("{}/{id}?wait={wait}", routes::APPROVALS);
            match self.call(Method::GET, &path, None::<&()>).await {
                Ok(next) => answer = next,
                // A gateway that is away comes back; what was asked for stands in the cluster.
                Err(error) if error.is_transient() && unix_now() < answer.expires_at + EXPIRY_GRACE_SECONDS => sleep(PAUSE).await,
                Err(error) => return Err(self.told(format!("the decision on approval {id} could not be learnt: {error}"))),
            }
        }
    }

    fn told(&self, why: String) -> Refusal {
        self.events.note(why.clone());
        why
    }

    /// Use the approval for the action as it is now. One execution id for all tries: a lost answer is asked for again.
    async fn consume(&self, id: i64, action: Action) -> Result<(), Refusal> {
        let mut random = [0u8; 16];
        rand::fill(&mut random).map_err(|_| "there is no randomness".to_owned())?;
        let execution_id = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = format!("{}/{id}/consume", routes::APPROVALS);
        let consumed = self.call(Method::POST, &path, Some(&ConsumeRequest { execution_id, action })).await;
        match consumed {
            Ok(answer) if answer.state == ApprovalState::Consumed => {
                self.deadline.moved_to(answer.deadline);
                Ok(())
            }
            Ok(_) => Err(format!("approval {id} could not be used")),
            Err(CallError::Refused { code, .. }) if code == "digest_mismatch" => {
                Err(self.told(format!("what approval {id} was given for has changed since; ask again by sending the call again")))
            }
            Err(error) => Err(self.told(format!("approval {id} could not be used: {error}"))),
        }
    }

    async fn call(&self, method: Method, path: &str, body: Option<&impl Serialize>) -> Result<ApprovalAnswer, CallError> {
        self.gateway.json_as(Audience::Approvals, method, path, body, self.until()).await
    }

    fn until(&self) -> Instant {
        Instant::now() + self.deadline.left().min(PATIENCE)
    }
}
