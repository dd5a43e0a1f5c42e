//! Paths that other file systems take for one another: they differ only in case or in Unicode normalisation, or one is a file
//! where the other needs a folder. A patch with such a pair would not apply everywhere, or would hide one file behind another.

use std::collections::HashMap;

/// The first pair that cannot stand together in the tree after the change, if any involves a changed file. `kept` are the
/// paths that stay as they were; whatever the source itself holds is its owner's matter.
pub(super) fn collision<'a>(kept: impl Iterator<Item = &'a str>, written: impl Iterator<Item = &'a str>) -> Option<(&'a str, &'a str)> {
    // Folded path to its spelling, whether it is a file, and the whole path that brought it.
    let mut seen: HashMap<String, (&'a str, bool, &'a str)> = HashMap::new();
    for path in kept {
        for (part, is_file) in parts(path) {
            seen.entry(folded(part)).or_insert((part, is_file, path));
        }
    }
    for path in written {
        for (part, is_file) in parts(path) {
            match seen.get(&folded(part)) {
                Some((other, other_is_file, whole)) if *other != part || *other_is_file != is_file => return Some((whole, path)),
                // The same file twice would be a duplicate; paths are unique by then.
                Some(_) => {}
                None => drop(seen.insert(folded(part), (part, is_file, path))),
            }
        }
    }
    None
}

/// Every folder above the file, then the file.
fn parts(path: &str) -> impl Iterator<Item = (&str, bool)> {
    path.match_indices('/').map(|(at, _)| (&path[..at], false)).chain([(path, true)])
}

/// Case folded by way of upper case, so that ß meets SS, and in NFC.
fn folded(path: &str) -> String {
    let nfc = icu_normalizer::ComposingNormalizerBorrowed::new_nfc();
    let case: String = nfc.normalize(path).chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
    nfc.normalize(&case).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_collides() {
        let rows: &[(&[&str], &[&str], bool)] = &[
            (&["a.py"], &["b.py"], false),
            (&["README"], &["readme"], true),
            (&[], &["README", "readme"], true),
            (&["Src/a.py"], &["src/b.py"], true),
            (&["src/a.py"], &["src/b.py"], false),
            (&["caf\u{e9}"], &["cafe\u{301}"], true),
            (&["d\u{e9}/x"], &["de\u{301}/y"], true),
            (&["CAF\u{c9}"], &["cafe\u{301}"], true),
            (&["stra\u{df}e"], &["STRASSE"], true),
            (&["\u{212a}elvin"], &["kelvin"], true),
            (&["a"], &["a/b"], true),
            (&["a/b"], &["a"], true),
            (&["a/b"], &["A"], true),
            // Of the source alone: not ours to refuse.
            (&["README", "readme"], &["b"], false),
        ];
        for (kept, written, expected) in rows {
            assert_eq!(collision(kept.iter().copied(), written.iter().copied()).is_some(), *expected, "{kept:?} {written:?}");
        }
        assert_eq!(collision(["Src/a.py"].into_iter(), ["src/b.py"].into_iter()), Some(("Src/a.py", "src/b.py")), "both are named in full");
    }
}
