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
        self.0.nfc().collect::<String>().to_lowercase().nfc().collect()
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

/// Characters that change how text looks without being seen: zero width, bidi controls, tags, line and paragraph separators.
pub fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Whether some file system takes this component for `.git`: case, NTFS short name, trailing dots and spaces, streams.
fn is_git(component: &str) -> bool {
    let name = component.split(':').next().unwrap_or(component).trim_end_matches(['.', ' ']).to_lowercase();
    name == ".git" || name == "git~1"
}
