//! The path grammar of sources, allowed paths and results. One implementation, used by every process that judges a path.

/// Longest path in bytes.
pub const MAX_PATH_BYTES: usize = 512;

/// Why a string is not a path of the workspace.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    #[error("is empty")]
    Empty,
    #[error("is longer than {MAX_PATH_BYTES} bytes")]
    TooLong,
    #[error("starts with '/'; paths are relative to the workspace")]
    Absolute,
    #[error("contains a backslash")]
    Backslash,
    #[error("contains a control character or an invisible formatting character")]
    Control,
    #[error("has an empty component, '.' or '..'")]
    Component,
    #[error("has a component equivalent to '.git'")]
    Git,
    #[error("uses '*'; only a last component '**' is a pattern")]
    Wildcard,
}

/// A checked relative POSIX path beneath the workspace: no `..`, backslash, control or bidi characters, nothing that
/// any file system takes for `.git`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelativePath(String);

impl RelativePath {
    /// Check a string.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if text.is_empty() {
            return Err(PathError::Empty);
        }
        if text.len() > MAX_PATH_BYTES {
            return Err(PathError::TooLong);
        }
        if text.starts_with('/') {
            return Err(PathError::Absolute);
        }
        if text.contains('\\') {
            return Err(PathError::Backslash);
        }
        if text.chars().any(|c| c.is_control() || is_invisible(c)) {
            return Err(PathError::Control);
        }
        for component in text.split('/') {
            if component.is_empty() || component == "." || component == ".." {
                return Err(PathError::Component);
            }
            if is_git(component) {
                return Err(PathError::Git);
            }
        }
        Ok(RelativePath(text.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Two paths with the same key are one file on some file system (letter case, Unicode composition), so a tree holds
    /// at most one of them.
    pub fn collision_key(&self) -> String {
        use unicode_normalization::UnicodeNormalization;
        // By way of capitals, so that letters with two small forms (ſ and s, ς and σ, ß and ss) are one.
        self.0.nfc().flat_map(char::to_uppercase).flat_map(char::to_lowercase).nfc().collect()
    }
}

impl std::fmt::Display for RelativePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// One entry of `allowedPaths`: a file, `dir/**`, or `**`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedPath {
    Everything,
    File(RelativePath),
    Subtree(RelativePath),
}

impl AllowedPath {
    /// Check a string.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if text == "**" {
            return Ok(AllowedPath::Everything);
        }
        if text.strip_suffix("/**").unwrap_or(text).contains('*') {
            return Err(PathError::Wildcard);
        }
        match text.strip_suffix("/**") {
            Some(dir) => RelativePath::parse(dir).map(AllowedPath::Subtree),
            None => RelativePath::parse(text).map(AllowedPath::File),
        }
    }

    /// Whether a change of this file is allowed.
    pub fn admits(&self, path: &RelativePath) -> bool {
        match self {
            AllowedPath::Everything => true,
            AllowedPath::File(file) => file == path,
            AllowedPath::Subtree(dir) => path.0.strip_prefix(dir.as_str()).is_some_and(|rest| rest.starts_with('/')),
        }
    }
}

impl AllowedPath {
    /// Whether it admits anything beneath a directory, or, if that is a file, the file; `None` is the workspace.
    pub fn admits_beneath(&self, directory: Option<&RelativePath>) -> bool {
        let Some(directory) = directory else { return true };
        let inside = |path: &RelativePath| path == directory || AllowedPath::Subtree(directory.clone()).admits(path);
        match self {
            AllowedPath::File(file) => inside(file),
            AllowedPath::Subtree(dir) => inside(dir) || self.admits(directory),
            AllowedPath::Everything => true,
        }
    }
}

/// Characters that change how text looks without being seen: zero width, bidi controls, tags, line and paragraph separators.
pub fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Whether some file system takes this component for `.git`: case, NTFS short name, trailing dots and spaces, streams.
fn is_git(component: &str) -> bool {
    let name = component.split(':').next().unwrap_or(component).trim_end_matches(['.', ' ']).to_lowercase();
    name == ".git" || name == "git~1"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_relative_and_plain() {
        for good in
            ["a", "a/b.py", ".gitignore", "a/.gitattributes", "git", "git~2", "...", "a b/c", "ü/日本.txt", "-rf", "a*b", "a:b", ".git-x"]
        {
            assert_eq!(RelativePath::parse(good).map(|path| path.to_string()), Ok(good.to_owned()), "{good:?}");
        }
        for (bad, why) in [
            ("", PathError::Empty),
            ("/etc/passwd", PathError::Absolute),
            ("a\\b", PathError::Backslash),
            ("a\0b", PathError::Control),
            ("a\nb", PathError::Control),
            ("a\u{202e}b", PathError::Control),
            ("a\u{200b}b", PathError::Control),
            ("a\u{e0041}b", PathError::Control),
            ("..", PathError::Component),
            ("a/../b", PathError::Component),
            ("a//b", PathError::Component),
            ("a/", PathError::Component),
            ("./a", PathError::Component),
            (".git", PathError::Git),
            (".git/config", PathError::Git),
            ("a/.GIT/hooks", PathError::Git),
            ("a/.git. ./x", PathError::Git),
            ("GIT~1/x", PathError::Git),
            (".git::$INDEX_ALLOCATION/x", PathError::Git),
        ] {
            assert_eq!(RelativePath::parse(bad), Err(why), "{bad:?}");
        }
    }

    #[test]
    fn the_bound_counts_bytes() {
        assert!(RelativePath::parse(&"a".repeat(MAX_PATH_BYTES)).is_ok());
        assert_eq!(RelativePath::parse(&"a".repeat(MAX_PATH_BYTES + 1)), Err(PathError::TooLong));
        assert_eq!(RelativePath::parse(&"ü".repeat(MAX_PATH_BYTES / 2 + 1)), Err(PathError::TooLong));
        assert!(AllowedPath::parse(&format!("{}/**", "a".repeat(MAX_PATH_BYTES))).is_ok());
    }

    #[test]
    fn an_allowed_path_admits_itself_or_what_is_beneath() {
        for (entry, path, admitted) in [
            ("**", "any/thing", true),
            ("a/b.py", "a/b.py", true),
            ("a/b.py", "a/b.pyc", false),
            ("a/b.py", "a/b.py/c", false),
            ("a/**", "a/b", true),
            ("a/**", "a/b/c", true),
            ("a/**", "a", false),
            ("a/**", "ab/c", false),
            ("a/**", "b/a/c", false),
            ("a/**", "A/b", false),
        ] {
            let entry = AllowedPath::parse(entry).expect("a good entry");
            let path = RelativePath::parse(path).expect("a good path");
            assert_eq!(entry.admits(&path), admitted, "{entry:?} {path}");
        }
        for (bad, why) in [
            ("", PathError::Empty),
            ("*", PathError::Wildcard),
            ("src/*.py", PathError::Wildcard),
            ("**/a", PathError::Wildcard),
            ("a/**/b", PathError::Wildcard),
            ("a/**/**", PathError::Wildcard),
            ("/**", PathError::Empty),
            ("/a/**", PathError::Absolute),
            ("../**", PathError::Component),
            (".git/**", PathError::Git),
        ] {
            assert_eq!(AllowedPath::parse(bad), Err(why), "{bad:?}");
        }
    }
}
