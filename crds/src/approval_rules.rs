//! Which actions of an agent need a person: rules by tool and argument, and the one function that judges an action by them.
//! Pure; the runner asks it before it acts, and the gateway again before it records a request.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::paths::{AllowedPath, RelativePath};

/// One rule. It matches an action when every member that is set does.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRule {
    /// Tools, such as `run_command` or `write_file`. Empty: every tool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// A command's argv; a last element `*` admits any further arguments. Set: only commands match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Files, `dir/**` or `**`, any of which the action's path is, or, for `list` and `search`, which lie beneath it. Set: only
    /// actions on a path match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    pub decision: RuleDecision,
}

/// What becomes of an action; ordered from loose to strict.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleDecision {
    /// Performed at once.
    Allow,
    /// A person decides.
    Ask,
    /// Refused; the agent is told.
    Deny,
}

/// What rules look at.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub tool: &'a str,
    /// Empty for what is no command.
    pub argv: &'a [String],
    /// Of what acts on a path; relative to the workspace. A path outside the grammar matches every `paths`.
    pub path: Option<&'a str>,
}

impl Asked<'_> {
    /// Tools that look at a whole directory, which is the workspace if they name none.
    fn looks_beneath(&self) -> bool {
        matches!(self.tool, "list" | "search")
    }
}

impl ApprovalRule {
    fn matches(&self, asked: &Asked<'_>) -> bool {
        let tool = self.tools.is_empty() || self.tools.iter().any(|tool| tool == asked.tool);
        let argv = self.argv.as_deref().is_none_or(|pattern| !asked.argv.is_empty() && argv_admits(pattern, asked.argv));
        tool && argv && (self.paths.is_empty() || self.names(asked))
    }

    /// What cannot be judged is not let past a rule: a rule that cannot be read matches too.
    fn names(&self, asked: &Asked<'_>) -> bool {
        let Ok(path) = asked.path.map(RelativePath::parse).transpose() else { return true };
        self.paths.iter().any(|pattern| match (AllowedPath::parse(pattern), &path) {
            (Err(_), _) => true,
            (Ok(pattern), path) if asked.looks_beneath() => pattern.admits_beneath(path.as_ref()),
            (Ok(pattern), Some(path)) => pattern.admits(path),
            (Ok(_), None) => false,
        })
    }
}

/// An argv against a pattern whose last element `*` admits any further arguments.
pub fn argv_admits(pattern: &[String], argv: &[String]) -> bool {
    match pattern.split_last() {
        Some((last, head)) if last == "*" && !head.is_empty() => argv.starts_with(head),
        _ => pattern == argv,
    }
}

/// The last matching rule of the policy decides, unless an earlier one denied; the run's own rules only tighten that.
pub fn judge(policy: &[ApprovalRule], run: &[ApprovalRule], asked: &Asked<'_>) -> RuleDecision {
    let by_policy = policy.iter().filter(|rule| rule.matches(asked)).fold(RuleDecision::Allow, |so_far, rule| match so_far {
        RuleDecision::Deny => RuleDecision::Deny,
        _ => rule.decision,
    });
    run.iter().filter(|rule| rule.matches(asked)).map(|rule| rule.decision).fold(by_policy, RuleDecision::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(tools: &[&str], argv: Option<&[&str]>, paths: &[&str], decision: RuleDecision) -> ApprovalRule {
        let own = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        ApprovalRule { tools: own(tools), argv: argv.map(own), paths: own(paths), decision }
    }

    #[test]
    fn the_last_match_decides_a_denial_stays_and_the_run_only_tightens() {
        use RuleDecision::{Allow, Ask, Deny};
        let ask_commands = || rule(&["run_command"], None, &[], Ask);
        let allow_git = |decision| rule(&[], Some(&["git", "*"]), &[], decision);
        let deny_push = || rule(&[], Some(&["git", "push", "*"]), &[], Deny);
        let secrets = |decision| rule(&[], None, &["secrets/**"], decision);
        type Row<'a> = (&'a str, Vec<ApprovalRule>, Vec<ApprovalRule>, &'a str, &'a [&'a str], Option<&'a str>, RuleDecision);
        let rows: Vec<Row> = vec![
            ("no rule", vec![], vec![], "run_command", &["ls"], None, Allow),
            ("asked", vec![ask_commands()], vec![], "run_command", &["ls"], None, Ask),
            ("another tool", vec![ask_commands()], vec![], "read_file", &[], Some("a"), Allow),
            ("a later rule allows", vec![ask_commands(), allow_git(Allow)], vec![], "run_command", &["git", "status"], None, Allow),
            ("the pattern alone", vec![ask_commands(), allow_git(Allow)], vec![], "run_command", &["git"], None, Allow),
            ("no prefix of a word", vec![allow_git(Deny)], vec![], "run_command", &["gitk"], None, Allow),
            ("a later rule asks again", vec![allow_git(Allow), ask_commands()], vec![], "run_command", &["git", "log"], None, Ask),
            ("denied for good", vec![deny_push(), allow_git(Allow)], vec![], "run_command", &["git", "push", "-f"], None, Deny),
            ("the run tightens", vec![], vec![ask_commands()], "run_command", &["ls"], None, Ask),
            ("the run cannot loosen", vec![deny_push()], vec![allow_git(Allow)], "run_command", &["git", "push"], None, Deny),
            ("a path", vec![secrets(Deny)], vec![], "write_file", &[], Some("secrets/a"), Deny),
            ("another path", vec![secrets(Deny)], vec![], "write_file", &[], Some("secret"), Allow),
            ("a path outside the grammar", vec![secrets(Deny)], vec![], "write_file", &[], Some("x/../secrets/a"), Deny),
            ("a directory above it, listed", vec![secrets(Deny)], vec![], "list", &[], None, Deny),
            ("it, searched", vec![secrets(Deny)], vec![], "search", &[], Some("secrets"), Deny),
            ("a directory in it, searched", vec![secrets(Deny)], vec![], "search", &[], Some("secrets/old"), Deny),
            ("another directory, searched", vec![secrets(Deny)], vec![], "search", &[], Some("secret"), Allow),
            ("paths and a command", vec![secrets(Deny)], vec![], "run_command", &["cat", "secrets/a"], None, Allow),
            ("argv and a path", vec![allow_git(Deny)], vec![], "write_file", &[], Some("git"), Allow),
        ];
        for (name, policy, run, tool, argv, path, expected) in rows {
            let argv: Vec<String> = argv.iter().map(|text| (*text).to_owned()).collect();
            assert_eq!(judge(&policy, &run, &Asked { tool, argv: &argv, path }), expected, "{name}");
        }
    }
}
