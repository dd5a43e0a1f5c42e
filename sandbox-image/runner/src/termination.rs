//! How a runner ends that could not deliver a result: a reason and a sentence, for the operator.

use std::{io::Write, path::Path};

use agentrun_crds::conditions::Reason;
use serde_json::json;

/// Kubernetes keeps 4,096 bytes of a termination message.
const MAX_MESSAGE_CHARS: usize = 800;

/// No result was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    pub reason: Reason,
    pub message: String,
}

impl Failed {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Failed { reason, message: message.into() }
    }

    /// Not 0, and not what a crash gives.
    pub fn exit_code(&self) -> u8 {
        match self.reason {
            Reason::ConfinementFailed => 3,
            Reason::StartupDeadlineExceeded => 4,
            Reason::Compromised => 5,
            Reason::ResultInvalid => 6,
            Reason::NetworkNotEnforced => 8,
            // As a signal's end would show.
            Reason::Cancelled => 143,
            _ => 7,
        }
    }
}

/// Write the message where the kubelet reads it. The file exists and belongs to the kubelet, so it is only opened.
pub fn write(path: &Path, failed: &Failed) {
    let message: String = failed.message.chars().take(MAX_MESSAGE_CHARS).collect();
    let text = json!({"reason": failed.reason.as_str(), "message": message}).to_string();
    let written = std::fs::OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    if let Err(error) = written {
        eprintln!("agentrun-runner: {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_is_json_and_short() {
        let file = tempfile::NamedTempFile::new().unwrap();
        write(file.path(), &Failed::new(Reason::SandboxLost, "\u{0}é".repeat(5000)));
        let text = std::fs::read_to_string(file.path()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["reason"], "SandboxLost");
        assert_eq!(value["message"].as_str().unwrap().chars().count(), MAX_MESSAGE_CHARS);
    }
}
