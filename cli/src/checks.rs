//! `--check "python3 -m unittest"` or `--check unit="python3 -m unittest"`: words as a shell splits them, without a shell.

use agentrun_crds::agent_run::Check;

use crate::failure::Failure;

/// Words that mean something to a shell and nothing here.
const SHELL_WORDS: [&str; 10] = ["&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>&1"];

/// The checks in order, each with a name of its own, and warnings.
pub fn parse(texts: &[String]) -> Result<(Vec<Check>, Vec<String>), Failure> {
    let mut checks: Vec<Check> = Vec::new();
    let mut warnings = Vec::new();
    for text in texts {
        let (name, words) = match named(text) {
            Some((name, words)) => (Some(name), words),
            None => (None, text.as_str()),
        };
        let argv = shell_words::split(words).map_err(|_| Failure::usage(format!("--check {text:?}: a quote is not closed")))?;
        if argv.is_empty() {
            return Err(Failure::usage(format!("--check {text:?} has no program")));
        }
        if let Some(word) = argv.iter().find(|word| SHELL_WORDS.contains(&word.as_str())) {
            warnings.push(format!(
                "--check {text:?}: no shell is involved, so {word:?} is a plain argument; use sh -c '…' if you mean a shell"
            ));
        }
        let name = match name {
            Some(name) => name.to_owned(),
            None => free_name(&checks),
        };
        if checks.iter().any(|check| check.name == name) {
            return Err(Failure::usage(format!("two checks are named {name:?}")));
        }
        checks.push(Check { name, argv });
    }
    Ok((checks, warnings))
}

/// `unit=…`: a DNS label before the first `=`.
fn named(text: &str) -> Option<(&str, &str)> {
    let (name, words) = text.split_once('=')?;
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = !name.is_empty()
        && name.len() <= 63
        && name.chars().all(|c| letters(c) || c == '-')
        && name.starts_with(letters)
        && name.ends_with(letters);
    label.then_some((name, words))
}

fn free_name(checks: &[Check]) -> String {
    let mut number = checks.len() + 1;
    while checks.iter().any(|check| check.name == format!("check-{number}")) {
        number += 1;
    }
    format!("check-{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_by_a_shell_without_one() {
        for (text, name, argv) in [
            ("python3 -m unittest discover", "check-1", vec!["python3", "-m", "unittest", "discover"]),
            ("unit=python3 -m unittest", "unit", vec!["python3", "-m", "unittest"]),
            ("sh -c 'make && make test'", "check-1", vec!["sh", "-c", "make && make test"]),
            (r#"grep "a b" c\ d ''"#, "check-1", vec!["grep", "a b", "c d", ""]),
            ("A=b make", "check-1", vec!["A=b", "make"]),
            ("make A=b", "check-1", vec!["make", "A=b"]),
            ("-x=y", "check-1", vec!["-x=y"]),
            ("ls $HOME *", "check-1", vec!["ls", "$HOME", "*"]),
        ] {
            let (checks, _) = parse(&[text.to_owned()]).expect(text);
            assert_eq!((checks[0].name.as_str(), checks[0].argv.iter().map(String::as_str).collect::<Vec<_>>()), (name, argv), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_or_warned_of() {
        for (texts, part) in [
            (vec!["echo 'a"], "a quote is not closed"),
            (vec![""], "has no program"),
            (vec!["unit="], "has no program"),
            (vec!["a=true", "a=false"], "two checks are named \"a\""),
        ] {
            let texts: Vec<String> = texts.into_iter().map(String::from).collect();
            assert!(parse(&texts).expect_err("refused").message.contains(part), "{texts:?}");
        }
        let (_, warnings) = parse(&["make && make test".to_owned()]).expect("a check");
        assert!(warnings[0].contains("no shell is involved"), "{warnings:?}");
        let (checks, _) = parse(&["check-2=true".to_owned(), "false".to_owned()]).expect("checks");
        assert_eq!(checks[1].name, "check-3");
    }
}
