//! File names in a patch, as git writes them: quoted in C style when they hold a quote or a byte outside printable ASCII; and
//! also when a component begins or ends with a space, where git's own reader fails on what git itself writes.

/// `prefix` and `path`, quoted if need be.
pub(super) fn name(prefix: &str, path: &str) -> String {
    if is_plain(path) {
        return format!("{prefix}{path}");
    }
    let mut quoted = format!("\"{prefix}");
    for byte in path.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            b' '..=b'~' => quoted.push(char::from(byte)),
            _ => quoted.push_str(&format!("\\{byte:03o}")),
        }
    }
    quoted.push('"');
    quoted
}

fn is_plain(path: &str) -> bool {
    let bytes = path.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\');
    bytes && path.split('/').all(|component| component.trim_matches(' ') == component)
}

/// After the name in `---` and `+++` lines: a tab ends an unquoted name that has spaces.
pub(super) fn tab(path: &str) -> &'static str {
    if path.contains(' ') && is_plain(path) { "\t" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_as_git_does() {
        for (path, expected) in [
            ("a/b.py", "a/a/b.py"),
            ("a b", "a/a b"),
            ("say \"hi\"", r#""a/say \"hi\"""#),
            ("ü", r#""a/\303\274""#),
            ("日本", r#""a/\346\227\245\346\234\254""#),
            ("-rf", "a/-rf"),
            ("b/ a/b", r#""a/b/ a/b""#),
            ("t /b", r#""a/t /b""#),
        ] {
            assert_eq!(name("a/", path), expected);
        }
    }
}
