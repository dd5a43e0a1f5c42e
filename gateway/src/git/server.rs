//! What is asked of a git server, in three requests: what it can do, what a ref means, and the objects of one commit.

use std::collections::{BTreeMap, BTreeSet};

use agentrun_protocol::git_object::ObjectId;
use bytes::Bytes;

use super::connection::{Answer, Remote};
use super::failure::Failure;
use super::pkt_line::{Line, Lines, put};
use super::refs;

const ADVERTISEMENT: &str = "application/x-git-upload-pack-advertisement";
const RESULT: &str = "application/x-git-upload-pack-result";
/// Largest list of capabilities or of refs.
const MAX_LIST_BYTES: u64 = 1 << 20;
const TOO_MANY_REFS: &str = "the git server lists more refs than are read; give the ref's full name, or the commit";
const TOO_LARGE: &str = "the git server sends more than the policy's git.maxBytes; name a smaller repository, or ask for a larger bound";

/// A server that speaks version 2 of the protocol.
pub(super) struct Server<'a> {
    remote: &'a Remote,
    /// Whether histories can be cut.
    shallow: bool,
    names_format: bool,
}

impl<'a> Server<'a> {
    /// Ask what it can do.
    pub async fn hello(remote: &'a Remote) -> Result<Server<'a>, Failure> {
        let no_version = "the git server does not speak version 2 of git's protocol";
        let path = "/info/refs?service=git-upload-pack";
        let mut messages = Messages::of(remote.ask(path, None, ADVERTISEMENT, MAX_LIST_BYTES, no_version).await?);
        let mut line = messages.next().await?;
        if line.as_ref().and_then(Line::text).is_some_and(|text| text.starts_with("# service=")) {
            line = match messages.next().await? {
                Some(Line::Flush) => messages.next().await?,
                _ => return Err(Messages::malformed()),
            };
        }
        if line.as_ref().and_then(Line::text) != Some("version 2") {
            return Err(Failure::lasting(no_version));
        }
        let mut capabilities = BTreeMap::new();
        loop {
            match messages.next().await? {
                Some(Line::Flush) => break,
                Some(line) => {
                    let text = line.text().ok_or_else(Messages::malformed)?;
                    let (name, value) = text.split_once('=').unwrap_or((text, ""));
                    capabilities.insert(name.to_owned(), value.to_owned());
                }
                None => return Err(Messages::malformed()),
            }
        }
        let format = capabilities.get("object-format");
        if let Some(format) = format.filter(|format| *format != "sha1") {
            let named = if format == "sha256" { "SHA-256" } else { "another hash" };
            return Err(Failure::lasting(format!("the repository names its objects by {named}; only SHA-1 repositories can be sources")));
        }
        let fetch = capabilities.get("fetch").ok_or_else(|| Failure::lasting("the git server offers no fetch"))?;
        let features: BTreeSet<&str> = fetch.split(' ').collect();
        Ok(Server { remote, shallow: features.contains("shallow"), names_format: format.is_some() })
    }

    fn command(&self, name: &str) -> Vec<u8> {
        let mut request = Vec::new();
        put(&mut request, &format!("command={name}"));
        if self.names_format {
            put(&mut request, "object-format=sha1");
        }
        request.extend_from_slice(b"0001");
        request
    }

    /// The object that a ref means now.
    pub async fn resolve(&self, reference: &str) -> Result<ObjectId, Failure> {
        let mut request = self.command("ls-refs");
        put(&mut request, "peel");
        for name in refs::candidates(reference) {
            put(&mut request, &format!("ref-prefix {name}"));
        }
        request.extend_from_slice(b"0000");
        let mut messages = Messages::of(self.remote.ask("/git-upload-pack", Some(request), RESULT, MAX_LIST_BYTES, TOO_MANY_REFS).await?);
        let mut found = BTreeMap::new();
        loop {
            match messages.next().await? {
                Some(Line::Flush) => break,
                Some(line) => found.extend(line.text().and_then(refs::advertised)),
                None => return Err(Messages::malformed()),
            }
        }
        refs::choose(reference, &found)
    }

    /// Ask for everything that a commit holds, without its ancestors where the server can.
    pub async fn fetch(&self, commit: ObjectId, most: u64) -> Result<Pack, Failure> {
        let mut request = self.command("fetch");
        for argument in ["ofs-delta", "no-progress"] {
            put(&mut request, argument);
        }
        if self.shallow {
            put(&mut request, "deepen 1");
        }
        put(&mut request, &format!("want {commit}"));
        put(&mut request, "done");
        request.extend_from_slice(b"0000");
        let messages = Messages::of(self.remote.ask("/git-upload-pack", Some(request), RESULT, most, TOO_LARGE).await?);
        Ok(Pack { messages, begun: false })
    }
}

/// A pack under way.
pub(super) struct Pack {
    messages: Messages,
    begun: bool,
}

impl Pack {
    /// The next piece of the pack; `None` at its end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        while !self.begun {
            match self.messages.next().await? {
                // Before it stands which commits have no ancestors here.
                Some(line) if line.text() == Some("packfile") => self.begun = true,
                Some(Line::Flush | Line::End) | None => return Err(Messages::malformed()),
                Some(_) => {}
            }
        }
        loop {
            let Some(line) = self.messages.next().await? else { return Err(Failure::passing("the git server broke off its pack")) };
            let Line::Data(mut data) = line else {
                return if line == Line::Flush { Ok(None) } else { Err(Messages::malformed()) };
            };
            match data.first() {
                Some(1) => {
                    let _ = data.split_to(1);
                    return Ok(Some(data));
                }
                Some(2) => {}
                Some(3) => return Err(Failure::passing("the git server reported an error while it sent the pack")),
                _ => return Err(Messages::malformed()),
            }
        }
    }
}

/// The lines of an answer.
struct Messages {
    answer: Answer,
    lines: Lines,
}

impl Messages {
    fn of(answer: Answer) -> Self {
        Messages { answer, lines: Lines::default() }
    }

    fn malformed() -> Failure {
        Failure::lasting("the git server's answer is not in the form of git's protocol")
    }

    /// `None`: the answer has ended.
    async fn next(&mut self) -> Result<Option<Line>, Failure> {
        loop {
            match self.lines.next() {
                Err(_) => return Err(Messages::malformed()),
                Ok(Some(line)) => {
                    return match line.text().and_then(|text| text.strip_prefix("ERR ")) {
                        None => Ok(Some(line)),
                        Some(why) if why.contains("not our ref") => Err(Failure::passing(
                            "the git server does not have the commit, or no longer gives it out; if a branch was rewritten just now, run again",
                        )),
                        Some(_) => Err(Failure::lasting("the git server refused the request in git's own terms")),
                    };
                }
                Ok(None) => {}
            }
            match self.answer.next().await? {
                Some(piece) => self.lines.push(&piece),
                None if self.lines.is_empty() => return Ok(None),
                None => return Err(Failure::passing("the git server broke off its answer")),
            }
        }
    }
}
