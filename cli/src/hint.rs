//! Commands that we suggest, with the flags by which the user has said which cluster and namespace are meant: what is copied
//! works. Hints are written as `kubectl agentrun VERB …`, and completed where they are printed.

use std::sync::{PoisonError, RwLock};

use crate::arguments::Connection;

const COMMAND: &str = "kubectl agentrun ";

/// Of this process: set before the first hint.
static FLAGS: RwLock<Flags> = RwLock::new(Flags { cluster: String::new(), namespace: String::new() });

struct Flags {
    cluster: String,
    namespace: String,
}

/// Remember what was given on the command line.
pub fn remember(connection: &Connection) {
    let Connection { kubeconfig, context, cluster, user, namespace, act_as, as_group, request_timeout: _ } = connection;
    let kubeconfig = kubeconfig.as_ref().map(|path| path.display().to_string());
    let given = [("--kubeconfig", &kubeconfig), ("--context", context), ("--cluster", cluster), ("--user", user), ("--as", act_as)];
    let given = given.into_iter().filter_map(|(flag, value)| Some((flag, value.as_deref()?)));
    let groups = as_group.iter().map(|group| ("--as-group", group.as_str()));
    let words = given.chain(groups).map(|(flag, value)| format!("{flag} {} ", shell_words::quote(value))).collect();
    let mut flags = FLAGS.write().unwrap_or_else(PoisonError::into_inner);
    flags.cluster = words;
    drop(flags);
    if let Some(namespace) = namespace {
        in_namespace(namespace);
    }
}

/// The namespace is not that of the context.
pub fn in_namespace(namespace: &str) {
    FLAGS.write().unwrap_or_else(PoisonError::into_inner).namespace = format!("-n {} ", shell_words::quote(namespace));
}

/// A text of ours with its commands completed.
pub fn complete(text: &str) -> String {
    let flags = FLAGS.read().unwrap_or_else(PoisonError::into_inner);
    completed(text, &flags.cluster, &flags.namespace)
}

fn completed(text: &str, cluster: &str, namespace: &str) -> String {
    let mut parts = text.split(COMMAND);
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // A command that names its namespace itself.
        let command = part.split([';', ',']).next().unwrap_or_default();
        let namespace = if command.contains(" -n ") { "" } else { namespace };
        whole.push_str(COMMAND);
        whole.push_str(cluster);
        whole.push_str(namespace);
        whole.push_str(part);
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_gets_the_flags_once() {
        for (text, expected) in [
            ("nothing", "nothing"),
            ("See: kubectl agentrun why r", "See: kubectl agentrun --context c -n team why r"),
            (
                "kubectl agentrun diff r; kubectl agentrun approve r 1 -n other",
                "kubectl agentrun --context c -n team diff r; kubectl agentrun --context c approve r 1 -n other",
            ),
        ] {
            assert_eq!(completed(text, "--context c ", "-n team "), expected);
        }
        assert_eq!(completed("kubectl agentrun why r", "", ""), "kubectl agentrun why r");
    }
}
