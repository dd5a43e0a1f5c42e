//! Why a command ended early: what happened, what to do, and the exit status.

use crate::exit::Exit;
use crate::{hint, visible};

/// Printed as `error: <message>`, then the advice on a line of its own.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    pub message: String,
    pub advice: Option<String>,
}

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Failure { exit, message: message.into(), advice: None }
    }

    /// The command line or a file of the user is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure::new(Exit::Usage, message)
    }

    /// Something on this machine went wrong.
    pub fn local(what: impl std::fmt::Display, error: &std::io::Error) -> Self {
        Failure::new(Exit::Failed, format!("{what}: {error}"))
    }

    pub fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Nobody reads any more: not worth a word.
    pub fn is_silent(&self) -> bool {
        self.exit == Exit::ReaderGone
    }

    /// For standard error; nothing in it controls a terminal.
    pub fn shown(&self) -> String {
        let mut text = format!("error: {}\n", visible::block(&self.message));
        if let Some(advice) = &self.advice {
            text.push_str(&visible::block(&hint::complete(advice)));
            text.push('\n');
        }
        text
    }
}

/// Of writing to standard output.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Failure::new(Exit::ReaderGone, "the reader has gone"),
            _ => Failure::new(Exit::Failed, format!("cannot write: {error}")),
        }
    }
}
