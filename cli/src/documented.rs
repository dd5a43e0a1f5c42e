//! `docs/cli.md` says what the program says of itself: verbs, flags and exit statuses are generated into it.
//! `AGENTRUN_REGENERATE=1 cargo test --workspace --bin kubectl-agentrun documented` writes them.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::{Arg, Command, CommandFactory};

use crate::arguments::Arguments;
use crate::exit::Exit;

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md")
}

/// Text between `<!-- begin NAME -->` and `<!-- end NAME -->`.
fn replaced(page: &str, name: &str, text: &str) -> String {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let (before, rest) = page.split_once(&begin).expect("the page has the beginning");
    let (_, after) = rest.split_once(&end).expect("the page has the end");
    format!("{before}{begin}{text}{end}{after}")
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

fn flag(argument: &Arg) -> String {
    let optional = argument.get_num_args().is_some_and(|range| range.min_values() == 0);
    let named = |name: &clap::builder::Str| if optional { format!("[={name}]") } else { format!(" {name}") };
    let value = argument.get_value_names().map(|names| names.iter().map(named).collect::<String>()).unwrap_or_default();
    let takes = argument.get_action().takes_values();
    let value = if takes { value } else { String::new() };
    match (argument.get_short(), argument.get_long()) {
        (Some(short), Some(long)) => format!("`-{short}, --{long}{value}`"),
        (None, Some(long)) => format!("`--{long}{value}`"),
        (Some(short), None) => format!("`-{short}{value}`"),
        (None, None) => format!("`{}`", value.trim()),
    }
}

fn flags(command: &Command, global: bool) -> String {
    let mut text = String::new();
    for argument in command.get_arguments() {
        if argument.is_global_set() != global || ["help", "version"].contains(&argument.get_id().as_str()) {
            continue;
        }
        let mut help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let values: Vec<String> = argument.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        if argument.get_action().takes_values() && !values.is_empty() {
            help = format!("{help}{}one of {}", if help.is_empty() { "" } else { "; " }, values.join(", "));
        }
        let _ = writeln!(text, "| {} | {} |", flag(argument), cell(&help));
    }
    text
}

fn verbs() -> String {
    let mut text = String::new();
    for verb in Arguments::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
        let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = write!(text, "### {}\n\n{}.\n\n", verb.get_name(), about);
        let rows = flags(verb, false);
        if !rows.is_empty() {
            let _ = write!(text, "| | |\n|---|---|\n{rows}\n");
        }
    }
    text
}

#[test]
fn the_page_says_what_the_program_says() {
    let before = std::fs::read_to_string(page()).expect("the page");
    let statuses: String = Exit::ALL.iter().map(|exit| format!("| {} | {} |\n", exit.code(), cell(exit.meaning()))).collect();
    let mut after = replaced(&before, "statuses", &format!("| Status | Meaning |\n|---|---|\n{statuses}"));
    after = replaced(&after, "global flags", &format!("| | |\n|---|---|\n{}", flags(&Arguments::command(), true)));
    after = replaced(&after, "verbs", &verbs());
    if std::env::var_os("AGENTRUN_REGENERATE").is_some() {
        std::fs::write(page(), after).expect("written");
    } else {
        assert_eq!(
            before, after,
            "docs/cli.md is out of date: AGENTRUN_REGENERATE=1 cargo test --workspace --bin kubectl-agentrun documented"
        );
    }
}
