//! The verdict over a well-formed result, from what we know of the run. Pure. A result that contradicts what we know is
//! ResultInvalid; one that is true may still be a failure, and the message says what to do next.

use std::collections::BTreeMap;

use agentrun_crds::AgentRun;
use agentrun_crds::agent_run_status::Resolved;
use agentrun_crds::conditions::Reason;
use agentrun_crds::paths::AllowedPath;
use agentrun_protocol::result::{ClaimedCheck, Outcome};

use super::base::Base;
use super::claims::Claims;
use super::collision::collision;
use super::exhausted::{self, NamespaceBudget};
use super::unapproved::unapproved;

/// Longest message in status.
const MAX_MESSAGE: usize = 1024;
/// Paths that a message names.
const NAMED: usize = 3;

/// How the run did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub reason: Reason,
    pub message: String,
}

impl Verdict {
    pub(super) fn new(reason: Reason, message: impl Into<String>) -> Self {
        let mut message: String = message.into();
        if message.chars().nth(MAX_MESSAGE).is_some() {
            message = message.chars().take(MAX_MESSAGE - 1).chain(['…']).collect();
        }
        Verdict { reason, message }
    }

    pub(super) fn invalid(what: impl std::fmt::Display) -> Self {
        Verdict::new(
            Reason::ResultInvalid,
            format!(
                "The sandbox's result contradicts what is known: {what}. Nothing of it was taken; run it again, and if it repeats, look at the agent's image."
            ),
        )
    }
}

pub(super) fn judge(claims: &Claims, base: &Base, run: &AgentRun, resolved: &Resolved, of_namespace: &NamespaceBudget) -> Verdict {
    if let Some(what) = untrue(claims, base, resolved) {
        return Verdict::invalid(what);
    }
    // An early end keeps its reason; work that is said to be done and cannot be carried over is not.
    if !claims.manifest_complete && claims.outcome == Outcome::Done {
        let text = "The list of changed files is incomplete, so no patch can stand for the work. Remove what is named, or keep it out of the workspace.";
        return Verdict::new(Reason::ResultInvalid, with_words(text, claims));
    }
    if let Some(path) = in_place_of_omitted(claims, run) {
        let message = format!(
            "Changed {path}, where the commit has a symbolic link or a submodule that was left out of the workspace: no patch can put a file there. Leave it alone in spec.allowedPaths, or change it by hand."
        );
        return Verdict::new(Reason::PathNotAllowed, message);
    }
    let outside = outside(claims, resolved);
    if !outside.is_empty() {
        let why_else = if claims.outcome == Outcome::Done {
            String::new()
        } else {
            format!(" (The agent also ended early: {}.)", outcome_reason(claims.outcome).as_str())
        };
        let message = format!(
            "Changed outside allowedPaths: {}. Allow these paths in spec.allowedPaths, or tell the agent to leave them alone.{why_else}",
            named(&outside)
        );
        return Verdict::new(Reason::PathNotAllowed, message);
    }
    let verdict = match claims.outcome {
        Outcome::Done => done(claims, resolved),
        // Whoever ended for it only repeats our refusal, which said the same.
        Outcome::BudgetExhausted if let NamespaceBudget::Spent(spent) = of_namespace => {
            Verdict::new(Reason::BudgetExhausted, exhausted::of_namespace(spent))
        }
        other => Verdict::new(outcome_reason(other), with_words(&early(other, run, resolved, of_namespace), claims)),
    };
    match (verdict.reason, unapproved(run)) {
        (Reason::ChecksFailed | Reason::NoChanges | Reason::AgentError, Some((reason, what))) => {
            Verdict::new(reason, format!("{what} After that: {}", verdict.message))
        }
        _ => verdict,
    }
}

/// What the result says that cannot be.
fn untrue(claims: &Claims, base: &Base, resolved: &Resolved) -> Option<String> {
    if claims.steps > resolved.max_steps {
        return Some(format!("it claims {} steps of at most {}", claims.steps, resolved.max_steps));
    }
    for (n, check) in claims.checks.iter().enumerate() {
        match resolved.checks.get(n) {
            Some(wanted) if wanted.name == check.name && wanted.argv == check.argv => {}
            Some(wanted) => return Some(format!("its check {} is not {} with the argv of the run", n + 1, wanted.name)),
            None => return Some(format!("it has {} checks, the run has {}", claims.checks.len(), resolved.checks.len())),
        }
    }
    if claims.outcome == Outcome::Done && claims.checks.len() < resolved.checks.len() {
        return Some(format!("it is done with {} of {} checks", claims.checks.len(), resolved.checks.len()));
    }
    for change in &claims.changes {
        let known = base.state(change.path.as_str());
        if known != change.before {
            let what = if known.is_some() { "was not like that in the source" } else { "was not in the source" };
            return Some(format!("{} {what}", change.path));
        }
    }
    let changed: BTreeMap<&str, bool> = claims.changes.iter().map(|change| (change.path.as_str(), change.after.is_some())).collect();
    let kept = base.paths().filter(|path| !changed.contains_key(path));
    let written = changed.iter().filter(|(_, stays)| **stays).map(|(path, _)| *path);
    collision(kept, written).map(|(one, other)| {
        format!("{one} and {other} cannot stand together on every file system (case, Unicode form, or file against folder)")
    })
}

/// A new path at, beneath or above what was left out of the commit.
fn in_place_of_omitted<'a>(claims: &'a Claims, run: &AgentRun) -> Option<&'a str> {
    let git = run.status.as_ref()?.source.as_ref()?.git.as_ref()?;
    let beneath = |one: &str, other: &str| one.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let written = claims.changes.iter().filter(|change| change.after.is_some()).map(|change| change.path.as_str());
    let mut taken = written.filter(|path| git.omitted.iter().any(|omitted| beneath(path, omitted) || beneath(omitted, path)));
    taken.next()
}

/// Changed paths that the run does not allow; deletions count.
fn outside<'a>(claims: &'a Claims, resolved: &Resolved) -> Vec<&'a str> {
    let allowed: Vec<AllowedPath> = resolved.allowed_paths.iter().filter_map(|text| AllowedPath::parse(text).ok()).collect();
    claims
        .changes
        .iter()
        .filter(|change| !allowed.iter().any(|entry| entry.admits(&change.path)))
        .map(|change| change.path.as_str())
        .collect()
}

fn done(claims: &Claims, resolved: &Resolved) -> Verdict {
    let unmet: Vec<&ClaimedCheck> = claims.checks.iter().filter(|check| check.exit_code != Some(0)).collect();
    let Some(first) = unmet.first() else {
        let (checks, files) = (counted(claims.checks.len(), "check"), counted(claims.changes.len(), "file"));
        return Verdict::new(Reason::Succeeded, format!("{checks} passed, {files} changed."));
    };
    let others = if unmet.len() > 1 { format!(" ({} checks in all did not pass)", unmet.len()) } else { String::new() };
    match first.exit_code {
        None => Verdict::new(
            Reason::CheckUnavailable,
            format!(
                "The program of check {} ({}) could not be started{others}. Use an image that has it (this was {}), or change the check.",
                first.name,
                first.argv.first().map_or("", String::as_str),
                resolved.image
            ),
        ),
        Some(code) if claims.changes.is_empty() => Verdict::new(
            Reason::NoChanges,
            with_words(
                &format!(
                    "The agent changed nothing, and check {} exited with {code}{others}. Say more exactly in spec.instruction what is to change.",
                    first.name
                ),
                claims,
            ),
        ),
        Some(code) => Verdict::new(
            Reason::ChecksFailed,
            with_words(
                &format!(
                    "Check {} exited with {code}{others}. Its output is in the run's events; the changes so far are in the patch. Make the instruction more exact, or allow more steps.",
                    first.name
                ),
                claims,
            ),
        ),
    }
}

fn outcome_reason(outcome: Outcome) -> Reason {
    match outcome {
        Outcome::Done => Reason::Succeeded,
        Outcome::StepLimit => Reason::StepLimitReached,
        Outcome::BudgetExhausted => Reason::BudgetExhausted,
        Outcome::Deadline => Reason::DeadlineExceeded,
        Outcome::ProviderAuthFailed => Reason::ProviderAuthFailed,
        Outcome::ProviderUnavailable => Reason::ProviderUnavailable,
        Outcome::ProviderMisconfigured => Reason::ProviderMisconfigured,
        Outcome::GatewayUnavailable => Reason::GatewayUnavailable,
        Outcome::SourceUnavailable => Reason::SourceUnavailable,
        Outcome::WorkspaceFull => Reason::WorkspaceFull,
        Outcome::ExecutorLost => Reason::SandboxLost,
        Outcome::AgentError => Reason::AgentError,
    }
}

/// What to do when the agent ended early.
fn early(outcome: Outcome, run: &AgentRun, resolved: &Resolved, of_namespace: &NamespaceBudget) -> String {
    match outcome {
        Outcome::Done => String::new(),
        Outcome::StepLimit => format!("All {} steps were used. Raise spec.limits.maxSteps, or give a smaller task.", resolved.max_steps),
        Outcome::BudgetExhausted => exhausted::of_run(run, of_namespace),
        Outcome::Deadline => {
            format!("The wall time of {} s passed. Raise spec.limits.wallTime, or give a smaller task.", resolved.wall_time_seconds)
        }
        Outcome::ProviderAuthFailed => format!(
            "The model provider refused our key. The key of ModelProvider {} has to be renewed; then run it again.",
            resolved.model.provider
        ),
        Outcome::ProviderUnavailable => {
            format!("The model provider did not answer, after retries. Look at ModelProvider {} and run it again.", resolved.model.provider)
        }
        Outcome::ProviderMisconfigured => format!(
            "ModelProvider {} is not set up rightly: its Secret, its URL or its models. The gateway's log says what is wrong; have it mended, then run it again.",
            resolved.model.provider
        ),
        Outcome::GatewayUnavailable => {
            "The gateway could not do its part, after retries. Look at its log and at the stores that it needs, then run it again.".into()
        }
        Outcome::SourceUnavailable => "The source could not be written into the workspace. Look at the run's events for the file.".into(),
        Outcome::WorkspaceFull => format!(
            "The workspace's limit of {} was exceeded. Ask for a policy with a larger workspace, or have the agent write less.",
            resolved.workspace
        ),
        Outcome::ExecutorLost => {
            "The agent's container was lost; what it did is not repeated. Run it again; if it repeats, look at its memory and its image."
                .into()
        }
        Outcome::AgentError => "The agent gave up. Its last messages are in the run's events.".into(),
    }
}

fn with_words(text: &str, claims: &Claims) -> String {
    if claims.message.is_empty() { text.to_owned() } else { format!("{text} The agent says: {}", claims.message) }
}

fn named(paths: &[&str]) -> String {
    let first = paths[..paths.len().min(NAMED)].join(", ");
    if paths.len() > NAMED { format!("{first} and {} more", paths.len() - NAMED) } else { first }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;
    use crate::store::Digest;

    /// The fixture's run with more files, two checks and one allowed subtree.
    fn run() -> AgentRun {
        let mut run = fixtures::run_json();
        run["spec"]["source"]["inline"]["files"] = json!([
            {"path": "src/a.py", "content": "x = 1\n", "executable": true},
            {"path": "src/b.py", "content": "b\n"},
            {"path": "README", "content": "r\n"},
        ]);
        run["status"]["resolved"]["allowedPaths"] = json!(["src/**", "NEWS"]);
        run["status"]["resolved"]["checks"] = json!([{"name": "unit", "argv": ["t", "-q"]}, {"name": "lint", "argv": ["l"]}]);
        serde_json::from_value(run).expect("a run")
    }

    fn state(content: &str, mode: u32) -> Value {
        json!({"digest": Digest::of(content.as_bytes()).to_string(), "mode": mode})
    }

    fn result() -> Value {
        json!({
            "runUid": fixtures::RUN_UID, "attempt": 1, "outcome": "done", "message": "", "steps": 3, "manifestComplete": true,
            "checks": [{"name": "unit", "argv": ["t", "-q"], "exitCode": 0}, {"name": "lint", "argv": ["l"], "exitCode": 0}],
            "changes": [{"path": "src/a.py", "before": state("x = 1\n", 755), "after": state("x = 2\n", 755)}],
        })
    }

    fn verdict(result: &Value) -> Verdict {
        let run = run();
        let claims = super::super::claims::parse(result.to_string().as_bytes(), fixtures::RUN_UID, 1).expect("well-formed");
        let resolved = run.status.as_ref().and_then(|status| status.resolved.clone()).expect("resolved");
        judge(&claims, &Base::inline(&run), &run, &resolved, &NamespaceBudget::Unlimited)
    }

    #[test]
    fn verdicts() {
        use Reason::*;
        let with = |edit: &dyn Fn(&mut Value)| {
            let mut result = result();
            edit(&mut result);
            result
        };
        let exit = |code: Value| with(&|r| r["checks"][0]["exitCode"] = code.clone());
        let change = |change: Value| with(&|r| r["changes"] = json!([change]));
        let outcome = |word: &str| with(&|r| (r["outcome"], r["checks"]) = (word.into(), json!([])));
        let rows: Vec<(Value, Reason, &str)> = vec![
            (result(), Succeeded, "2 checks passed, 1 file changed."),
            (with(&|r| r["changes"] = json!([])), Succeeded, "2 checks passed, 0 files changed."),
            (exit(json!(1)), ChecksFailed, "Check unit exited with 1. "),
            (exit(Value::Null), CheckUnavailable, "check unit (t)"),
            (with(&|r| (r["changes"], r["checks"][1]["exitCode"]) = (json!([]), json!(2))), NoChanges, "lint exited with 2"),
            (with(&|r| (r["checks"][0]["exitCode"], r["message"]) = (json!(1), json!("gave up"))), ChecksFailed, "The agent says: gave up"),
            // Allowed paths: changed, new, deleted, mode only.
            (change(json!({"path": "NEWS", "after": state("n", 644)})), Succeeded, ""),
            (change(json!({"path": "src/new/x", "after": state("n", 644)})), Succeeded, ""),
            (change(json!({"path": "README", "before": state("r\n", 644)})), PathNotAllowed, "README"),
            (change(json!({"path": "README", "before": state("r\n", 644), "after": state("r\n", 755)})), PathNotAllowed, "README"),
            (change(json!({"path": "srcs/x", "after": state("n", 644)})), PathNotAllowed, "srcs/x"),
            (
                with(&|r| {
                    r["changes"] = json!((1..6).map(|n| json!({"path": format!("o{n}"), "after": state("n", 644)})).collect::<Vec<_>>())
                }),
                PathNotAllowed,
                "o1, o2, o3 and 2 more",
            ),
            (
                with(&|r| (r["outcome"], r["changes"]) = ("stepLimit".into(), json!([{"path": "o", "after": state("n", 644)}]))),
                PathNotAllowed,
                "StepLimitReached",
            ),
            // Outcomes.
            (outcome("stepLimit"), StepLimitReached, "All 12 steps"),
            (with(&|r| r["outcome"] = "stepLimit".into()), StepLimitReached, "maxSteps"),
            (outcome("budgetExhausted"), BudgetExhausted, "0 of 10 requests"),
            (outcome("deadline"), DeadlineExceeded, "wallTime"),
            (outcome("providerAuthFailed"), ProviderAuthFailed, "ModelProvider scripted"),
            (outcome("providerUnavailable"), ProviderUnavailable, "ModelProvider scripted"),
            (outcome("providerMisconfigured"), ProviderMisconfigured, "ModelProvider scripted"),
            (outcome("gatewayUnavailable"), GatewayUnavailable, "stores"),
            (outcome("sourceUnavailable"), SourceUnavailable, ""),
            (outcome("workspaceFull"), WorkspaceFull, "1Gi"),
            (outcome("executorLost"), SandboxLost, ""),
            (outcome("agentError"), AgentError, ""),
            // Untrue.
            (
                with(&|r| (r["manifestComplete"], r["message"]) = (false.into(), "a.fifo is not a file".into())),
                ResultInvalid,
                "a.fifo is not a file",
            ),
            (
                with(&|r| (r["manifestComplete"], r["outcome"]) = (false.into(), "budgetExhausted".into())),
                BudgetExhausted,
                "0 of 10 requests",
            ),
            (with(&|r| r["steps"] = 13.into()), ResultInvalid, "13 steps of at most 12"),
            (with(&|r| r["checks"] = json!([])), ResultInvalid, "0 of 2 checks"),
            (with(&|r| r["checks"] = json!([r["checks"][0]])), ResultInvalid, "1 of 2 checks"),
            (with(&|r| r["checks"] = json!([r["checks"][1], r["checks"][0]])), ResultInvalid, "not unit"),
            (with(&|r| r["checks"] = json!([r["checks"][0], r["checks"][1], r["checks"][1]])), ResultInvalid, "3 checks"),
            (with(&|r| r["checks"][0]["argv"] = json!(["true"])), ResultInvalid, "not unit"),
            (with(&|r| r["checks"][0]["argv"] = json!(["t", "-q", ""])), ResultInvalid, "not unit"),
            (with(&|r| r["checks"][0]["name"] = json!("Unit")), ResultInvalid, "not unit"),
            (change(json!({"path": "src/a.py", "after": state("x", 644)})), ResultInvalid, "not like that"),
            (
                change(json!({"path": "src/a.py", "before": state("x = 1\n", 644), "after": state("x", 644)})),
                ResultInvalid,
                "not like that",
            ),
            (change(json!({"path": "src/a.py", "before": state("lie", 755), "after": state("x", 644)})), ResultInvalid, "not like that"),
            (
                change(json!({"path": "src/c.py", "before": state("x", 644), "after": state("y", 644)})),
                ResultInvalid,
                "was not in the source",
            ),
            (change(json!({"path": "src/c.py", "before": state("x", 644)})), ResultInvalid, "was not in the source"),
            (change(json!({"path": "src/A.py", "after": state("x", 644)})), ResultInvalid, "src/a.py and src/A.py"),
            (change(json!({"path": "src/b.py/x", "after": state("x", 644)})), ResultInvalid, "src/b.py and src/b.py/x"),
            // A rename in case only, and a file that makes room for a folder, are fine.
            (
                with(&|r| {
                    r["changes"] =
                        json!([{"path": "src/B.py", "after": state("b\n", 644)}, {"path": "src/b.py", "before": state("b\n", 644)}])
                }),
                Succeeded,
                "2 files",
            ),
            (
                with(&|r| {
                    r["changes"] =
                        json!([{"path": "src/b.py", "before": state("b\n", 644)}, {"path": "src/b.py/x", "after": state("b\n", 644)}])
                }),
                Succeeded,
                "2 files",
            ),
        ];
        for (result, reason, part) in rows {
            let verdict = verdict(&result);
            assert_eq!(verdict.reason, reason, "{} for {result}", verdict.message);
            assert!(verdict.message.contains(part), "{:?} has no {part:?}", verdict.message);
        }
    }

    #[test]
    fn a_denial_explains_only_what_it_may_have_led_to() {
        let mut denied = run();
        let totals = json!({"asked": 1, "allowed": 0, "denied": 1, "expired": 0});
        denied.status.as_mut().expect("a status").approval_totals = Some(serde_json::from_value(totals).expect("totals"));
        let resolved = denied.status.as_ref().and_then(|status| status.resolved.clone()).expect("resolved");
        for (outcome, exit, changed, expected) in [
            ("done", 0, true, Reason::Succeeded),
            ("done", 1, true, Reason::Denied),
            ("done", 1, false, Reason::Denied),
            ("agentError", 0, true, Reason::Denied),
            ("budgetExhausted", 0, true, Reason::BudgetExhausted),
            ("deadline", 0, true, Reason::DeadlineExceeded),
        ] {
            let mut result = result();
            (result["outcome"], result["checks"][0]["exitCode"]) = (outcome.into(), exit.into());
            if !changed {
                result["changes"] = json!([]);
            }
            if outcome != "done" {
                result["checks"] = json!([]);
            }
            let claims = super::super::claims::parse(result.to_string().as_bytes(), fixtures::RUN_UID, 1).expect("well-formed");
            let verdict = judge(&claims, &Base::inline(&denied), &denied, &resolved, &NamespaceBudget::Unlimited);
            assert_eq!(verdict.reason, expected, "{}", verdict.message);
        }
    }

    #[test]
    fn nothing_takes_the_place_of_what_was_left_out() {
        let mut run = run();
        run.status.as_mut().expect("a status").source = serde_json::from_value(json!({
            "digest": "", "bytes": 1, "files": 1,
            "git": {"commit": "", "tree": "", "stagedTree": "", "omitted": ["src/link", "src/lib"]},
        }))
        .expect("a source");
        let resolved = run.status.as_ref().and_then(|status| status.resolved.clone()).expect("resolved");
        for (path, expected) in [
            ("src/link", Reason::PathNotAllowed),
            ("src/lib/x", Reason::PathNotAllowed),
            ("src/library", Reason::Succeeded),
            ("src/new", Reason::Succeeded),
        ] {
            let mut result = result();
            result["changes"] = json!([{"path": path, "after": state("n", 644)}]);
            let claims = super::super::claims::parse(result.to_string().as_bytes(), fixtures::RUN_UID, 1).expect("well-formed");
            assert_eq!(judge(&claims, &Base::inline(&run), &run, &resolved, &NamespaceBudget::Unlimited).reason, expected, "{path}");
        }
    }

    #[test]
    fn messages_are_short() {
        let mut long = result();
        (long["checks"][0]["exitCode"], long["message"]) = (json!(1), json!("wörter ".repeat(1000)));
        assert_eq!(verdict(&long).message.chars().count(), MAX_MESSAGE);
    }

    #[test]
    fn a_run_that_found_its_namespaces_budget_spent_says_until_when() {
        let mut result = result();
        (result["outcome"], result["checks"], result["message"]) = ("budgetExhausted".into(), json!([]), "refused".into());
        let run = run();
        let claims = super::super::claims::parse(result.to_string().as_bytes(), fixtures::RUN_UID, 1).expect("well-formed");
        let resolved = run.status.as_ref().and_then(|status| status.resolved.clone()).expect("resolved");
        let judged = |of_namespace| judge(&claims, &Base::inline(&run), &run, &resolved, &of_namespace);
        let spent = json!({"period": "Day", "startsAt": "2026-11-30T00:00:00Z", "endsAt": "2026-12-01T00:00:00Z"});
        let spent = serde_json::from_value(spent).expect("a period");
        let verdict = judged(NamespaceBudget::Spent(Box::new(spent)));
        assert_eq!(verdict.reason, Reason::BudgetExhausted);
        let message = verdict.message;
        assert!(message.contains("for this day") && message.contains("from 2026-12-01T00:00:00Z on"), "{message}");
        assert!(!message.contains("The agent says"), "it says so once: {message}");
        assert!(judged(NamespaceBudget::Open).message.contains("if it was the namespace's"));
        assert!(!judged(NamespaceBudget::Unlimited).message.contains("namespace"));
    }
}
