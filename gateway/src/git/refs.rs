//! From what people call a commit to its name: the candidates of a ref, and which of those that a server has is meant. Pure.

use std::collections::BTreeMap;

use agentrun_protocol::git_object::ObjectId;

use super::failure::Failure;

/// The full names that a ref may stand for.
pub(super) fn candidates(reference: &str) -> Vec<String> {
    if reference == "HEAD" || reference.starts_with("refs/") {
        return vec![reference.to_owned()];
    }
    vec![format!("refs/tags/{reference}"), format!("refs/heads/{reference}")]
}

/// One line of `ls-refs`: a name, and the object behind it (behind its tags, where it is one). `None`: it says nothing of an object.
pub(super) fn advertised(line: &str) -> Option<(String, ObjectId)> {
    let mut words = line.split(' ');
    let direct = ObjectId::parse(words.next()?)?;
    let name = words.next()?.to_owned();
    let peeled = words.find_map(|word| word.strip_prefix("peeled:")).map(ObjectId::parse);
    Some((name, peeled.unwrap_or(Some(direct))?))
}

/// The object that the ref means.
pub(super) fn choose(reference: &str, found: &BTreeMap<String, ObjectId>) -> Result<ObjectId, Failure> {
    let names = candidates(reference);
    let meant: Vec<(&String, &ObjectId)> = names.iter().filter_map(|name| found.get_key_value(name)).collect();
    match meant[..] {
        [(_, id)] => Ok(*id),
        [] if reference == "HEAD" => Err(Failure::lasting("the repository is empty, or its default branch does not exist")),
        [] => Err(Failure::lasting(format!("the repository has no branch and no tag {reference}; a full name begins with refs/"))),
        [(_, one), (_, other), ..] if one == other => Ok(*one),
        _ => Err(Failure::lasting(format!(
            "{reference} is both a branch and a tag, of different commits; say refs/heads/{reference} or refs/tags/{reference}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ref_means_one_object_or_is_refused() {
        let id = |digit: &str| ObjectId::parse(&digit.repeat(40)).expect("an id");
        let found = BTreeMap::from([
            ("HEAD".to_owned(), id("1")),
            ("refs/heads/main".to_owned(), id("1")),
            ("refs/heads/both".to_owned(), id("2")),
            ("refs/tags/both".to_owned(), id("3")),
            ("refs/heads/same".to_owned(), id("4")),
            ("refs/tags/same".to_owned(), id("4")),
            ("refs/heads/main2".to_owned(), id("5")),
        ]);
        for (reference, expected) in [
            ("HEAD", Ok("1")),
            ("main", Ok("1")),
            ("refs/heads/both", Ok("2")),
            ("refs/tags/both", Ok("3")),
            ("same", Ok("4")),
            ("both", Err("both a branch and a tag")),
            ("heads/main", Err("no branch and no tag heads/main")),
            ("mai", Err("no branch and no tag")),
        ] {
            match (choose(reference, &found), expected) {
                (Ok(got), Ok(digit)) => assert_eq!(got, id(digit), "{reference}"),
                (Err(got), Err(part)) => assert!(got.message.contains(part) && !got.passing, "{reference}: {}", got.message),
                (got, expected) => panic!("{reference}: {got:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn tags_are_followed_to_what_they_name() {
        let (one, two) = ("1".repeat(40), "2".repeat(40));
        for (line, expected) in [
            (format!("{one} refs/heads/main"), Some(("refs/heads/main", &one))),
            (format!("{one} refs/tags/v1 peeled:{two}"), Some(("refs/tags/v1", &two))),
            (format!("{one} HEAD symref-target:refs/heads/main"), Some(("HEAD", &one))),
            ("unborn HEAD symref-target:refs/heads/main".to_owned(), None),
            (format!("{one} refs/tags/v1 peeled:x"), None),
            ("x".to_owned(), None),
        ] {
            let expected = expected.map(|(name, id)| (name.to_owned(), ObjectId::parse(id).expect("an id")));
            assert_eq!(advertised(&line), expected, "{line}");
        }
    }
}
