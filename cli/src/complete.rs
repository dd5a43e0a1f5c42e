//! What could come next on the command line, in the protocol by which kubectl asks plugins (that of cobra): a candidate a line,
//! with a tab before what explains it, and a last line with a directive.

use clap::{Arg, Command, CommandFactory, Parser};

use crate::arguments::{Arguments, Connection};
use crate::cluster::Cluster;
use crate::run_name::{LATEST, MINE};
use crate::runs;

/// Offer no files in place of candidates.
const NO_FILES: &str = ":4";
/// Let the shell offer files.
const FILES: &str = ":0";

/// What the words before the last one leave open.
enum Next {
    /// The value of a flag, or of a place, that has a closed list.
    Words(Vec<(String, String)>),
    Run,
    Files,
    Nothing,
}

/// Which cluster the words before name, whatever else is among them.
#[derive(Parser)]
#[command(ignore_errors = true, disable_help_flag = true)]
struct Given {
    #[command(flatten)]
    connection: Connection,
    #[arg(hide = true)]
    others: Vec<String>,
}

/// All of the answer; `words` are those behind `kubectl agentrun`, the last one unfinished. It never fails: no candidates.
pub async fn answer(words: &[String]) -> String {
    let (last, before) = words.split_last().map_or(("", &[] as &[_]), |(last, before)| (last.as_str(), before));
    let (candidates, directive) = match next(before, last) {
        Next::Words(words) => (words, NO_FILES),
        Next::Run => (run_names(before).await, NO_FILES),
        Next::Files => (Vec::new(), FILES),
        Next::Nothing => (Vec::new(), NO_FILES),
    };
    let fitting = candidates.into_iter().filter(|(word, _)| word.starts_with(last));
    let lines = fitting.map(|(word, about)| if about.is_empty() { word } else { format!("{word}\t{about}") });
    lines.chain([directive.to_owned()]).map(|line| line + "\n").collect()
}

fn next(before: &[String], last: &str) -> Next {
    let mut command = Arguments::command();
    command.build();
    let (mut open, mut places): (Option<Arg>, usize) = (None, 0);
    for word in before {
        if open.take().is_some() {
            // The value of the flag before it.
        } else if word.starts_with('-') {
            open = flag(&command, word).filter(|flag| flag.get_action().takes_values() && !word.contains('=')).cloned();
        } else if let Some(inner) = command.find_subcommand(word) {
            (command, places) = (inner.clone(), 0);
        } else {
            places += 1;
        }
    }
    if let Some(flag) = open {
        return of(&flag);
    }
    if last.starts_with('-') {
        let flags = command.get_arguments().filter(|flag| !flag.is_hide_set());
        return Next::Words(flags.filter_map(|flag| Some((format!("--{}", flag.get_long()?), about(flag.get_help())))).collect());
    }
    if command.has_subcommands() {
        let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set());
        return Next::Words(inner.map(|inner| (inner.get_name().to_owned(), about(inner.get_about()))).collect());
    }
    command.get_positionals().nth(places).map_or(Next::Nothing, of)
}

fn flag<'c>(command: &'c Command, word: &str) -> Option<&'c Arg> {
    let name = word.split('=').next().unwrap_or(word);
    command.get_arguments().find(|flag| match (name.strip_prefix("--"), name.strip_prefix('-')) {
        (Some(long), _) => flag.get_long() == Some(long),
        (None, Some(short)) => flag.get_short().is_some_and(|c| short.len() == c.len_utf8() && short.starts_with(c)),
        (None, None) => false,
    })
}

fn of(argument: &Arg) -> Next {
    let possible = argument.get_possible_values();
    let name = argument.get_value_names().and_then(<[_]>::first).map(clap::builder::Str::as_str);
    match name {
        _ if !possible.is_empty() => {
            Next::Words(possible.iter().map(|value| (value.get_name().to_owned(), about(value.get_help()))).collect())
        }
        Some("RUN") => Next::Run,
        Some("FILE" | "DIR") => Next::Files,
        _ => Next::Nothing,
    }
}

fn about(help: Option<&clap::builder::StyledStr>) -> String {
    help.map(|help| help.to_string().lines().next().unwrap_or_default().to_owned()).unwrap_or_default()
}

async fn run_names(before: &[String]) -> Vec<(String, String)> {
    let mut names =
        vec![(LATEST.to_owned(), "the newest of the namespace".to_owned()), (MINE.to_owned(), "the newest that you submitted".to_owned())];
    let given = Given::try_parse_from([String::new()].iter().chain(before));
    if let Ok(given) = given
        && let Ok(cluster) = Cluster::connect(&given.connection).await
        && let Ok(found) = runs::list(&cluster, Some(&cluster.namespace), None).await
    {
        let phase =
            |run: &agentrun_crds::AgentRun| run.status.as_ref().and_then(|status| status.phase).map(|phase| phase.as_str().to_owned());
        names.extend(found.iter().filter_map(|run| Some((run.metadata.name.clone()?, phase(run).unwrap_or_default()))));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn words_flags_and_values_are_offered() {
        for (line, offered, not, directive) in [
            ("", "approve", "__complete", NO_FILES),
            ("app", "approvals", "watch", NO_FILES),
            ("approve ", LATEST, "approve", NO_FILES),
            ("-n team approve ", LATEST, "approve", NO_FILES),
            ("approve RUN ", "", LATEST, NO_FILES),
            ("approve RUN --", "--session", "--hidden", NO_FILES),
            ("list -o ", "json", "list", NO_FILES),
            ("completion ", "bash", LATEST, NO_FILES),
            ("submit --dir ", "", LATEST, FILES),
            ("submit --dir=. --i", "--instruction", "--dir", NO_FILES),
            ("nonsense ", "approve", LATEST, NO_FILES),
        ] {
            let words: Vec<String> = ["--kubeconfig", "/nonexistent"].into_iter().chain(line.split(' ')).map(str::to_owned).collect();
            let answer = answer(&words).await;
            let (candidates, last) = answer.trim_end().rsplit_once('\n').unwrap_or(("", answer.trim_end()));
            let candidates: Vec<&str> = candidates.lines().filter_map(|line| line.split('\t').next()).collect();
            assert_eq!(last, directive, "{line}");
            assert!((offered.is_empty() && candidates.is_empty()) || candidates.contains(&offered), "{line}: {candidates:?}");
            assert!(!candidates.contains(&not), "{line}: {candidates:?}");
        }
    }
}
