//! Rules of `AgentTemplate`: bounds of a recipe, which is frozen into each run's status and so has to stay small.

use super::grammar;
use super::node::Node;

/// All files of a recipe together.
const FILES_BYTES: usize = 24_000;
const PATH: &str = r"^[A-Za-z_$@-][A-Za-z0-9_$@-]*(\[([*]|[0-9]{1,4})\])*([.][A-Za-z_$@-][A-Za-z0-9_$@-]*(\[([*]|[0-9]{1,4})\])*)*$";

pub fn shape(template: &mut Node<'_>) {
    let spec = &mut template.at("spec");
    bounds(spec);
    grammar::image(&mut spec.at("image"), false);
    spec.at("command").rule("self[0] != ''", "must begin with a program, then its arguments; no shell is involved");
    spec.at("environment")
        .rule("self.all(v, v.name.matches(r'^[A-Za-z_][A-Za-z0-9_]*$'))", "must have names of letters, digits and '_', the first no digit");
    spec.at("environment").rule(
        "self.all(v, !(v.name in ['LD_PRELOAD', 'LD_LIBRARY_PATH', 'HOME']))",
        "may not set HOME, LD_PRELOAD or LD_LIBRARY_PATH: the sandbox says where home is, the image where its libraries are",
    );
    grammar::path(&mut spec.at("files[].path"));
    spec.at("files").rule(
        format!("self.map(f, size(bytes(f.content))).sum() <= {FILES_BYTES}"),
        format!("may have at most {FILES_BYTES} bytes of content in all"),
    );
    spec.at("output").rule_on(
        "rules",
        "!has(self.rules) || self.rules.size() == 0 || self.format == 'JSONLines'",
        "are for the format JSONLines",
    );
    for path in ["each", "text", "tool", "arguments", "failed"] {
        field(&mut spec.at("output.rules[]").at(path));
    }
    for list in ["when", "with"] {
        field(&mut spec.at("output.rules[]").at(list).each().at("path"));
    }
    let permissions = &mut spec.at("permissions");
    permissions.rule_on("hook", "(self.bridge == 'Hook') == has(self.hook)", "must be set for the bridge Hook, and for no other");
    field(&mut permissions.at("hook.tool"));
    field(&mut permissions.at("hook.arguments"));
    for path in ["command", "path"] {
        field(&mut permissions.at("tools[]").at(path));
    }
    permissions
        .at("tools")
        .rule("self.all(t, t.knownAs.matches(r'^[A-Za-z0-9._-]+$'))", "must map to names of letters, digits, '.', '_' and '-'");
}

/// A place within a JSON value.
fn field(node: &mut Node<'_>) {
    node.rule(format!("self.matches(r'{PATH}')"), "must be a path such as message.content[*].text");
}

/// How large each part may be; also of the copy in a run's status.
pub fn bounds(spec: &mut Node<'_>) {
    spec.at("image").chars(1, 512);
    spec.at("command").list(1, 64).each().chars(0, 2_048);
    spec.at("environment").list_by("name", 0, 64);
    spec.at("environment[].name").chars(1, 128);
    spec.at("environment[].value").chars(0, 2_048);
    spec.at("files").list_by("path", 0, 16);
    spec.at("files[].path").chars(1, grammar::PATH_BYTES);
    spec.at("files[].content").chars(0, 24_000);
    spec.at("output.rules").list(0, 32);
    let mut rule = spec.at("output.rules[]");
    for (list, least) in [("when", 1), ("with", 0)] {
        rule.at(list).list(least, 8);
        rule.at(list).each().at("path").chars(1, 256);
        rule.at(list).each().at("equals").chars(0, 256);
    }
    for path in ["each", "text", "tool", "arguments", "failed"] {
        rule.at(path).chars(1, 256);
    }
    let permissions = &mut spec.at("permissions");
    for path in ["hook.tool", "hook.arguments"] {
        permissions.at(path).chars(1, 256);
    }
    for answer in ["hook.allow", "hook.deny"] {
        permissions.at(answer).chars(2, 1_024);
    }
    permissions.at("tools").list_by("name", 0, 64);
    for (name, most) in [("name", 128), ("knownAs", 64), ("command", 256), ("path", 256)] {
        permissions.at("tools[]").at(name).chars(1, most);
    }
}
