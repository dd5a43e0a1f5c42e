//! Renders changes as a git-format patch that `git apply` takes, and `git apply -R` takes back. Pure and deterministic: the
//! same changes give the same bytes, whatever the machine's load, since a repeated result is recognised by its digest.

mod binary;
pub(crate) mod hunks;
mod quote;
#[cfg(test)]
mod roundtrip;

use agentrun_crds::paths::RelativePath;
use agentrun_protocol::git_object::{Kind, ObjectId};

pub use hunks::Effort;

/// The two modes that a patch of ours knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Regular,
    Executable,
}

impl Mode {
    /// From the decimal digits of the octal form: 644 or 755.
    pub fn from_octal_digits(digits: u32) -> Option<Self> {
        match digits {
            644 => Some(Mode::Regular),
            755 => Some(Mode::Executable),
            _ => None,
        }
    }

    fn git(self) -> &'static str {
        match self {
            Mode::Regular => "100644",
            Mode::Executable => "100755",
        }
    }
}

/// A file before or after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side<'a> {
    pub content: &'a [u8],
    pub mode: Mode,
}

/// The patch would be larger than it may be.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
#[error("the patch would have more than {0} bytes")]
pub struct TooLarge(pub usize);

/// A patch in the making.
pub struct Patch {
    text: Vec<u8>,
    effort: Effort,
    most: usize,
}

impl Patch {
    /// An empty patch of at most so many bytes.
    pub fn new(most: usize) -> Self {
        Patch { text: Vec::new(), effort: Effort::default(), most }
    }

    /// Add one file's change. Both sides absent, or equal, adds nothing.
    pub fn add(&mut self, path: &RelativePath, old: Option<Side<'_>>, new: Option<Side<'_>>) -> Result<(), TooLarge> {
        if old != new {
            self.render(path.as_str(), old, new);
        }
        if self.text.len() > self.most { Err(TooLarge(self.most)) } else { Ok(()) }
    }

    /// The bytes.
    pub fn finish(self) -> Vec<u8> {
        self.text
    }

    fn render(&mut self, path: &str, old: Option<Side<'_>>, new: Option<Side<'_>>) {
        self.line(&["diff --git ", &quote::name("a/", path), " ", &quote::name("b/", path)]);
        match (old, new) {
            (None, Some(new)) => self.line(&["new file mode ", new.mode.git()]),
            (Some(old), None) => self.line(&["deleted file mode ", old.mode.git()]),
            (Some(old), Some(new)) if old.mode != new.mode => {
                self.line(&["old mode ", old.mode.git()]);
                self.line(&["new mode ", new.mode.git()]);
            }
            _ => {}
        }
        let (before, after) = (old.map_or(&b""[..], |side| side.content), new.map_or(&b""[..], |side| side.content));
        if before == after && old.is_some() && new.is_some() {
            return;
        }
        let unchanged_mode = match (old, new) {
            (Some(old), Some(new)) if old.mode == new.mode => format!(" {}", new.mode.git()),
            _ => String::new(),
        };
        self.line(&["index ", &object_id(old), "..", &object_id(new), &unchanged_mode]);
        if before == after {
            // A new or deleted empty file: the headers say it all.
            return;
        }
        match (text_of(before), text_of(after)) {
            (Some(before), Some(after)) => {
                let old_name = if old.is_some() { quote::name("a/", path) } else { "/dev/null".into() };
                let new_name = if new.is_some() { quote::name("b/", path) } else { "/dev/null".into() };
                self.line(&["--- ", &old_name, quote::tab(path)]);
                self.line(&["+++ ", &new_name, quote::tab(path)]);
                hunks::write(&mut self.text, before, after, &mut self.effort);
            }
            _ => {
                self.line(&["GIT binary patch"]);
                binary::write(&mut self.text, after);
                binary::write(&mut self.text, before);
            }
        }
    }

    fn line(&mut self, parts: &[&str]) {
        for part in parts {
            self.text.extend_from_slice(part.as_bytes());
        }
        self.text.push(b'\n');
    }
}

/// Text is UTF-8 without NUL; everything else is carried as binary, so that the patch itself is always text.
fn text_of(content: &[u8]) -> Option<&str> {
    std::str::from_utf8(content).ok().filter(|text| !text.contains('\0'))
}

/// The name that git gives this content; it checks it when it applies a binary change. Absent is all zeros.
fn object_id(side: Option<Side<'_>>) -> String {
    let Some(side) = side else { return "0".repeat(40) };
    ObjectId::of(Kind::Blob, side.content).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(content: &str) -> Option<Side<'_>> {
        Some(Side { content: content.as_bytes(), mode: Mode::Regular })
    }

    fn render(path: &str, old: Option<Side<'_>>, new: Option<Side<'_>>) -> String {
        let mut patch = Patch::new(usize::MAX);
        patch.add(&RelativePath::parse(path).expect("path"), old, new).expect("fits");
        String::from_utf8(patch.finish()).expect("UTF-8")
    }

    #[test]
    fn patches_read_as_git_writes_them() {
        let x = "0000000000000000000000000000000000000000";
        let rows = [
            (
                render("a.py", side("one\ntwo\n"), side("one\n2\n")),
                "diff --git a/a.py b/a.py\nindex 814f4a422927b82f5f8a43f8fab6d3839e3983f2..99b356dcd03dde0755c749bcd4cae4b2b73a8fa8 100644\n--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n".to_owned(),
            ),
            (
                render("e", None, side("")),
                format!("diff --git a/e b/e\nnew file mode 100644\nindex {x}..e69de29bb2d1d6434b8b29ae775ad8c2e48c5391\n"),
            ),
            (
                render("d/x y", side("a"), None),
                format!("diff --git a/d/x y b/d/x y\ndeleted file mode 100644\nindex 2e65efe2a145dda7ee51d1741299f848e5bf752e..{x}\n--- a/d/x y\t\n+++ /dev/null\t\n@@ -1 +0,0 @@\n-a\n\\ No newline at end of file\n"),
            ),
            (
                render("run.sh", side("a\n"), Some(Side { content: b"a\n", mode: Mode::Executable })),
                "diff --git a/run.sh b/run.sh\nold mode 100644\nnew mode 100755\n".to_owned(),
            ),
            (render("same", side("a"), side("a")), String::new()),
            (render("none", None, None), String::new()),
        ];
        for (actual, expected) in rows {
            assert_eq!(actual, expected);
        }
    }

    #[test]
    fn a_patch_has_a_largest_size() {
        let mut patch = Patch::new(1000);
        let path = RelativePath::parse("a").expect("path");
        assert_eq!(patch.add(&path, None, side(&"x\n".repeat(600))), Err(TooLarge(1000)));
    }
}
