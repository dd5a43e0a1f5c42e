//! Rules of `AgentRun`: the bounds of a spec, and that it never changes but for `cancel` and the time to live.

use super::node::Node;
use super::{agent_run_status, grammar};

/// May change after creation: `cancel` one way, the time to live freely.
const MUTABLE: [&str; 2] = ["cancel", "ttlSecondsAfterFinished"];

pub fn shape(run: &mut Node<'_>) {
    // Until the operator's first look: kstatus and Flux take an object whose generation nobody has observed for one under way. Nor
    // can a status be removed: what a write leaves out becomes this, and the rules of each field refuse that it is gone.
    run.at("status").default(serde_json::json!({"observedGeneration": -1}));
    spec(&mut run.at("spec"));
    agent_run_status::shape(&mut run.at("status"));
}

fn spec(spec: &mut Node<'_>) {
    grammar::long_text(spec, "instruction", 1, 32_000);
    source(&mut spec.at("source"));
    let mut allowed = spec.at("allowedPaths");
    allowed.list_set(1, 64);
    grammar::allowed_path(&mut allowed.each());
    grammar::checks(&mut spec.at("checks"));
    grammar::image(&mut spec.at("agent.image"), false);
    grammar::object_name(&mut spec.at("agent.harness"));
    grammar::word(&mut spec.at("model"), 128);
    spec.at("limits.maxSteps").range(1, 2_000);
    grammar::duration(&mut spec.at("limits.wallTime"), 24);
    grammar::budget_spec(&mut spec.at("limits.budget"));
    spec.at("priority").range(-1_000, 1_000);
    spec.at("ttlSecondsAfterFinished").range(0, 315_360_000);

    let mut rules = spec.at("approvals.rules");
    grammar::approval_rules(&mut rules, 16);
    rules.each().rule_on("decision", "self.decision != 'Allow'", "must be Ask or Deny: a run can only tighten what its policy says");
    grammar::word(&mut spec.at("rerunKey"), 128);
    grammar::text(&mut spec.at("submittedBy"), 1, 512);
    grammar::person(&mut spec.at("submittedFor"));

    spec.rule_on("cancel", "!oldSelf.cancel || self.cancel", "cannot be taken back once true");
    for field in spec.fields() {
        if !MUTABLE.contains(&field.as_str()) {
            spec.rule_on(
                &field,
                format!("has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"),
                "is immutable: of a run's spec only cancel (to true) and ttlSecondsAfterFinished may change; submit another run",
            );
        }
    }
}

fn source(source: &mut Node<'_>) {
    let members: Vec<String> = source.fields().iter().map(|field| format!("has(self.{field})")).collect();
    source.rule(
        format!("[{}].filter(given, given).size() == 1", members.join(", ")),
        format!("must have exactly one of: {}", source.fields().join(", ")),
    );
    source
        .at("archive.digest")
        .chars(1, 71)
        .rule("self.matches('^sha256:[0-9a-f]{64}$')", "must be sha256: and the 64 lower-case hex digits of the archive's SHA-256");
    let git = &mut source.at("git");
    grammar::git_url(&mut git.at("url"));
    grammar::git_ref(&mut git.at("ref"));
    grammar::path(&mut git.at("subPath"));
    let mut files = source.at("inline.files");
    files
        .list_by("path", 1, 32)
        .rule("self.map(f, size(bytes(f.content))).sum() <= 128000", "may have at most 128,000 bytes of content in all")
        .rule("!self.exists(f, self.exists(g, g.path.startsWith(f.path + '/')))", "may not use one path both as a file and as a directory");
    grammar::path(&mut files.each().at("path"));
    files.each().at("content").chars(0, 64_000);
    // On the file, not on its content, which a refusal would repeat.
    files.each().rule_on("content", "size(bytes(self.content)) <= 64000", "may have at most 64,000 bytes (UTF-8)").rule_on(
        "content",
        r"!self.content.contains('\u0000')",
        "must be text: it may contain no NUL",
    );
}
