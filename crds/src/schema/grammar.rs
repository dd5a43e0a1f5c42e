//! Texts that several kinds share: what a path, a name, a command, a duration or an amount may look like, as rules with
//! the sentence that people read when they break one. The regular expressions mean the same in RE2 and in Rust.

use super::node::Node;
use crate::git;

/// Most bytes of one path, as in `paths::MAX_PATH_BYTES`.
pub const PATH_BYTES: usize = crate::paths::MAX_PATH_BYTES;

/// Control characters other than tab and newline, and characters that reorder or hide text.
const NOT_TEXT: &str = r"[\x00-\x08\x0B-\x1F\x7F-\x9F\x{061C}\x{200E}\x{200F}\x{202A}-\x{202E}\x{2066}-\x{2069}\x{E0000}-\x{E007F}]";
/// Any control character and any character that is not seen, as in `paths::is_invisible`; backslash for paths.
const NOT_PATH: &str = r"[\\\x00-\x1F\x7F-\x9F\x{AD}\x{61C}\x{180E}\x{200B}-\x{200F}\x{2028}-\x{202E}\x{2060}-\x{206F}\x{FEFF}\x{FFF9}-\x{FFFB}\x{E0000}-\x{E007F}]";

const TEXT: &str = "may contain no control character but tab and newline, and no character that hides or reorders text (NUL, bidi marks)";

/// Text for people and models, several lines.
pub fn text(node: &mut Node<'_>, least: usize, most: usize) {
    node.chars(least, most).rule(format!("!self.matches(r'{NOT_TEXT}')"), TEXT);
}

/// The same for a field that may be long: a refusal repeats the value that its rule stands on, so this one stands on the
/// parent, of which only the type is repeated.
pub fn long_text(parent: &mut Node<'_>, field: &str, least: usize, most: usize) {
    parent.at(field).chars(least, most);
    parent.rule_on(field, format!("!self.{field}.matches(r'{NOT_TEXT}')"), TEXT);
}

/// A name of a person as the cluster knows them: one line in which every character is seen, so that two names that look the same
/// are the same.
pub fn person(node: &mut Node<'_>) {
    node.chars(1, 512).rule(
        format!(
            r"!self.matches(r'{}') && !self.matches(r'^\s|\s$|\x{{A0}}|[\x{{2000}}-\x{{200A}}]|\x{{3000}}')",
            NOT_PATH.replacen(r"\\", "", 1)
        ),
        "must be a name on one line, without characters that are not seen and without space at its ends",
    );
}

/// A name of something outside Kubernetes: a model, a key.
pub fn word(node: &mut Node<'_>, most: usize) {
    node.chars(1, most).rule(
        format!(r"self.matches(r'^[A-Za-z0-9]([-A-Za-z0-9._:/]{{0,{}}})$')", most - 1),
        format!("must be 1 to {most} letters, digits, '-', '.', '_', ':' or '/', and start with a letter or digit"),
    );
}

/// A DNS label.
pub fn label(node: &mut Node<'_>) {
    node.chars(1, 63).rule(
        "self.matches(r'^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",
        "must be a DNS label: 1 to 63 lower-case letters, digits or '-', and start and end with a letter or digit",
    );
}

/// The name of a Kubernetes object.
pub fn object_name(node: &mut Node<'_>) {
    node.chars(1, 253).rule(
        "self.matches(r'^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",
        "must be the name of an object: 1 to 253 lower-case letters, digits, '-' or '.', and start and end with a letter or digit",
    );
}

/// A file of the workspace; the same grammar as `paths::RelativePath`.
pub fn path(node: &mut Node<'_>) {
    node.chars(1, PATH_BYTES).rule(format!("size(bytes(self)) <= {PATH_BYTES}"), format!("may have at most {PATH_BYTES} bytes"));
    components(node);
}

/// A file, `dir/**` or `**`; the same grammar as `paths::AllowedPath`.
pub fn allowed_path(node: &mut Node<'_>) {
    let with_stars = PATH_BYTES + 3;
    node.chars(1, with_stars)
        .rule(
            format!("size(bytes(self)) <= (self.endsWith('/**') ? {with_stars} : {PATH_BYTES})"),
            format!("may have at most {PATH_BYTES} bytes before '/**'"),
        )
        .rule(
            r"self.matches(r'^([*][*]|[^*]+(/[*][*])?)$')",
            "must name a file (a/b.py), a subtree (a/**) or everything (**); no other use of '*' is a pattern here",
        );
    components(node);
}

fn components(node: &mut Node<'_>) {
    node.rule(
        format!("!self.matches(r'{NOT_PATH}')"),
        "may contain no backslash, no control character and no invisible character (NUL, bidi marks, zero width)",
    )
    .rule(
        r"!self.matches(r'(^|/)[.]{0,2}(/|$)')",
        "must be a path relative to the workspace: no leading or trailing '/', no empty, '.' or '..' component",
    )
    .rule(r"!self.matches(r'(?i)(^|/)([.]git|git~1)[. ]*(:[^/]*)?(/|$)')", "may have no component that a file system takes for '.git'");
}

/// A command: program and arguments, run without a shell. `most` characters an argument: what the rules of a list of lists
/// may cost the API server is bounded.
pub fn argv(node: &mut Node<'_>, most: usize) {
    node.list(1, 32)
        .rule("self[0] != ''", "must begin with a program, then its arguments; no shell is involved")
        .rule("self.map(a, size(bytes(a))).sum() <= 8192", "may have at most 8,192 bytes in all");
    text(&mut node.each(), 0, most);
}

/// Checks by name, each an argv.
pub fn checks(node: &mut Node<'_>) {
    node.list_by("name", 0, 8);
    let mut each = node.each();
    label(&mut each.at("name"));
    argv(&mut each.at("argv"), 2_048);
}

/// Rules of approvals.
pub fn approval_rules(node: &mut Node<'_>, most: usize) {
    node.list(0, most);
    let mut rule = node.each();
    word(&mut rule.at("tools").list_set(0, 16).each(), 64);
    argv(&mut rule.at("argv"), 256);
    rule.at("argv")
        .rule("self[0] != '*'", "may not begin with '*': leave argv out to mean every command, and say tools: [run_command]")
        .rule(
            "self.filter(word, word == '*').size() <= (self[self.size() - 1] == '*' ? 1 : 0)",
            "may have '*' as its last word only, where it means any further arguments",
        );
    let mut paths = rule.at("paths");
    paths.list_set(0, 16);
    allowed_path(&mut paths.each());
}

/// A duration from one second to `hours`.
pub fn duration(node: &mut Node<'_>, hours: u32) {
    node.chars(1, 24).rule(
        format!(
            "self.matches(r'^([0-9]{{1,5}}h)?([0-9]{{1,7}}m)?([0-9]{{1,7}}s)?$') && self != '' && duration(self) >= duration('1s') && duration(self) <= duration('{hours}h')"
        ),
        format!("must be a duration such as 180s, 30m or 1h30m, from 1s to {hours}h"),
    );
}

/// An amount of money; `quantity::micros` reads it.
pub fn decimal(node: &mut Node<'_>) {
    node.chars(1, 16).rule(
        "self.matches(r'^[0-9]{1,9}([.][0-9]{1,6})?$')",
        "must be a decimal string such as \"0.50\", with at most 9 digits before and 6 after the point",
    );
}

/// A Kubernetes quantity above zero.
pub fn quantity(node: &mut Node<'_>, most: &str) {
    node.chars(1, 32).rule(
        format!("isQuantity(self) && quantity(self).isGreaterThan(quantity('0')) && !quantity(self).isGreaterThan(quantity('{most}'))"),
        format!("must be a quantity such as 1, 500m or 1Gi, above 0 and at most {most}"),
    );
}

/// What models may cost.
pub fn budget_spec(node: &mut Node<'_>) {
    node.at("requests").range(1, 1_000_000);
    node.at("inputTokens").range(1, 1_000_000_000_000);
    node.at("outputTokens").range(1, 1_000_000_000_000);
    decimal(&mut node.at("cost"));
}

/// What all runs of a namespace may spend in a period.
pub fn period_limit(node: &mut Node<'_>) {
    for dimension in ["requests", "inputTokens", "outputTokens"] {
        node.at(dimension).range(1, 1_000_000_000_000_000);
    }
    decimal(&mut node.at("cost"));
    node.at("cost").rule("self.matches(r'[1-9]')", "must be more than 0; take out what the policy offers to stop all runs");
    let members = node.fields();
    let members: Vec<String> = members.iter().map(|field| format!("has(self.{field})")).collect();
    node.rule(members.join(" || "), "must limit at least one of requests, inputTokens, outputTokens and cost");
}

/// An image reference; `pattern` also admits one `*` at the end.
pub fn image(node: &mut Node<'_>, pattern: bool) {
    let (star, also) = if pattern { ("[*]?", ", or the beginning of one and '*'") } else { ("", "") };
    let body = if pattern { "([A-Za-z0-9][A-Za-z0-9._:/@-]*)?" } else { "[A-Za-z0-9][A-Za-z0-9._:/@-]*" };
    node.chars(1, 512).rule(
        format!("self.matches(r'^{body}{star}$')"),
        format!("must be an image reference such as registry.example/team/tools:1.2 or tools@sha256:…{also}"),
    );
}

/// The URL of a repository; the same grammar as `git::GitUrl`.
pub fn git_url(node: &mut Node<'_>) {
    node.chars(1, git::MAX_URL_CHARS)
        .rule("!self.contains('@')", "may carry no credentials ('@'): the policy names a Secret for them")
        .rule(
            r"self.matches(r'^https?://[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*(:[1-9][0-9]{0,4})?(/[A-Za-z0-9._~+-]+)+$') && !self.matches(r'/[.]{1,2}(/|$)') && !self.matches(r'^https?://[^/]{254}') && !self.matches(r'^https?://[^/]*:(6553[6-9]|655[4-9][0-9]|65[6-9][0-9]{2}|6[6-9][0-9]{3}|[7-9][0-9]{4})/')",
            format!("must be {}", git::URL_ALLOWED),
        );
}

/// A ref or a commit; the same grammar as `git::is_ref`.
pub fn git_ref(node: &mut Node<'_>) {
    node.chars(1, git::MAX_REF_CHARS).rule(
        r"self.matches(r'^[A-Za-z0-9_.@+#%=,/-]+$') && !self.matches(r'([.][.]|//|@[{]|/[.]|[.]/|[.]lock/|^[-/.]|[/.]$|[.]lock$|^@$)')",
        format!("must be {}", git::REF_ALLOWED),
    );
}
