//! The agent's loop: ask the model, perform what it asks for, tell it what came of that, until it says that it is done.

use agentrun_protocol::{
    event::EventType,
    job::{Job, JobApprovals},
    result::Outcome,
};
use serde_json::{Value, json};

use crate::{
    approval_action::describe,
    approvals::{Approvals, Clearance},
    clip::clip,
    conversation::Conversation,
    deadline::Deadline,
    events::{Events, cut},
    executor::{Executor, ExecutorError},
    gateway::Gateway,
    model::{ModelError, Reply, ToolCall, ask},
    prompt,
    tool_arguments::{Action, parse},
    tools::{self, perform},
};

/// Tool calls of one turn that are performed; further ones are told to come again.
const MAX_CALLS: usize = 16;
/// What of a call's arguments and result an event shows of each text.
const SHOWN_BYTES: usize = 4 * 1024;
/// Turns in a row that neither said nor did anything.
const MAX_EMPTY_TURNS: u32 = 2;

/// What has been done so far. It outlives a loop that is cut short by the deadline.
pub struct Progress {
    pub conversation: Conversation,
    pub steps: i64,
    pub input_tokens: u64,
    pub output_tokens: u64,
}

impl Progress {
    /// At the beginning, with the paths of the source.
    pub fn new<'p>(job: &Job, paths: impl ExactSizeIterator<Item = &'p str>) -> Self {
        let conversation = Conversation::new(&job.model, prompt::system(), prompt::task(job, paths));
        Progress { conversation, steps: 0, input_tokens: 0, output_tokens: 0 }
    }
}

/// How a loop ended, and what to say about it.
pub type End = (Outcome, String);

/// What a loop works with.
pub struct Agent<'a> {
    pub gateway: &'a Gateway,
    pub executor: &'a Executor,
    pub events: &'a Events,
    pub deadline: Deadline,
    /// What needs a person; `None`: nothing does.
    pub rules: Option<&'a JobApprovals>,
    pub max_steps: i64,
}

impl Agent<'_> {
    /// Run to the end, or to the deadline.
    pub async fn run(&self, progress: &mut Progress) -> End {
        tokio::select! {
            biased;
            end = self.turns(progress) => end,
            () = self.deadline.passed() => (Outcome::Deadline, "the wall time passed before the agent was done".to_owned()),
        }
    }

    async fn turns(&self, progress: &mut Progress) -> End {
        let mut empty_turns = 0;
        while progress.steps < self.max_steps {
            progress.steps += 1;
            self.events.emit(EventType::Step, json!({"step": progress.steps, "maxSteps": self.max_steps}));
            let reply = match self.ask(&mut progress.conversation).await {
                Ok(reply) => reply,
                Err(end) => {
                    progress.steps -= 1;
                    return end;
                }
            };
            progress.input_tokens = progress.input_tokens.saturating_add(reply.input_tokens);
            progress.output_tokens = progress.output_tokens.saturating_add(reply.output_tokens);
            if !reply.text.trim().is_empty() {
                self.events.emit(EventType::Message, json!({"text": clip(&reply.text, 4 * SHOWN_BYTES)}));
            }
            progress.conversation.reply(&reply);
            if !reply.calls.is_empty() {
                empty_turns = 0;
                if let Err(end) = self.perform_all(progress, reply.calls).await {
                    return end;
                }
                continue;
            }
            match verdict(&reply) {
                Turn::Done => return (Outcome::Done, reply.text),
                Turn::Failed(why) => return (Outcome::AgentError, why.into()),
                Turn::GoOn(_) if empty_turns + 1 >= MAX_EMPTY_TURNS => {
                    return (Outcome::AgentError, "the model neither said nor did anything, twice".into());
                }
                Turn::GoOn(hint) => {
                    empty_turns += u32::from(reply.text.trim().is_empty());
                    progress.conversation.user(hint.into());
                }
            }
        }
        (Outcome::StepLimit, format!("the agent used all of its {} steps", self.max_steps))
    }

    async fn ask(&self, conversation: &mut Conversation) -> Result<Reply, End> {
        let mut halved = false;
        loop {
            let Some(body) = conversation.request() else {
                return Err((Outcome::AgentError, "the conversation does not fit a request any more".into()));
            };
            let error = match ask(self.gateway, self.events, &self.deadline, body).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let outcome = match error {
                ModelError::TooLong(_) if !halved && conversation.halve() => {
                    self.events.note("the conversation is too long for the model; old tool output is left out");
                    halved = true;
                    continue;
                }
                ModelError::BudgetExhausted(_) => Outcome::BudgetExhausted,
                ModelError::ProviderAuthFailed(_) => Outcome::ProviderAuthFailed,
                ModelError::ProviderUnavailable(_) => Outcome::ProviderUnavailable,
                ModelError::ProviderMisconfigured(_) => Outcome::ProviderMisconfigured,
                ModelError::GatewayUnavailable(_) => Outcome::GatewayUnavailable,
                ModelError::Inactive(_) | ModelError::TooLong(_) | ModelError::Refused(_) => Outcome::AgentError,
            };
            return Err((outcome, error.to_string()));
        }
    }

    /// In order, each result told to the model.
    async fn perform_all(&self, progress: &mut Progress, calls: Vec<ToolCall>) -> Result<(), End> {
        for (number, call) in calls.into_iter().enumerate() {
            let outcome = if number >= MAX_CALLS {
                tools::Outcome::failed(format!("not done: at most {MAX_CALLS} tool calls a turn; send it again"))
            } else {
                self.perform(progress.steps, &call).await.map_err(|error| (Outcome::ExecutorLost, error.to_string()))?
            };
            progress.conversation.tool_result(&call.id, outcome.text);
        }
        Ok(())
    }

    async fn perform(&self, step: i64, call: &ToolCall) -> Result<tools::Outcome, ExecutorError> {
        let mut shown: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!(call.arguments));
        cut(&mut shown, SHOWN_BYTES);
        let name = crate::clip::first_chars(&call.name, 64);
        self.events.emit(EventType::ToolCall, json!({"step": step, "tool": name, "arguments": shown}));
        let (outcome, approval) = match parse(&call.name, &call.arguments) {
            Ok(action) => self.cleared(&call.name, action).await?,
            Err(why) => (tools::Outcome::failed(why), None),
        };
        let output = clip(&outcome.text, 2 * SHOWN_BYTES);
        let truncated = outcome.truncated || output.len() != outcome.text.len();
        let mut event = json!({"step": step, "tool": name, "ok": outcome.ok, "output": output, "truncated": truncated});
        if let Some(id) = approval {
            event["approvalId"] = id.into();
        }
        self.events.emit(EventType::ToolResult, event);
        Ok(outcome)
    }

    /// Perform what may be; with the approval that it used. Should this be cut short after that, no result will name it, from
    /// which the gateway sees that nobody knows what came of it.
    async fn cleared(&self, tool: &str, action: Action) -> Result<(tools::Outcome, Option<i64>), ExecutorError> {
        let clearance = match self.rules {
            None => Clearance::Free,
            Some(rules) => {
                let Agent { gateway, executor, events, deadline, .. } = self;
                Approvals { gateway, executor, events, deadline, rules }.clear(&describe(tool, &action)).await?
            }
        };
        let approval = match clearance {
            Clearance::Refused(why) => return Ok((tools::Outcome::failed(why), None)),
            Clearance::Free => None,
            Clearance::Allowed(id) => Some(id),
        };
        Ok((perform(self.executor, self.events, &self.deadline, action).await?, approval))
    }
}

/// What a reply without tool calls means.
enum Turn {
    Done,
    GoOn(&'static str),
    Failed(&'static str),
}

fn verdict(reply: &Reply) -> Turn {
    match reply.finish.as_str() {
        "length" => Turn::GoOn("Your answer was cut off because it was too long. Go on, in smaller parts."),
        "content_filter" => Turn::Failed("the provider's content filter ended the answer"),
        _ if reply.text.trim().is_empty() => {
            Turn::GoOn("You sent neither text nor a tool call. Go on with the task, or say in a sentence that it is done.")
        }
        _ => Turn::Done,
    }
}
