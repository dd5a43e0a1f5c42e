//! Why a commit could not be fetched, in our own words.

/// For people: what went wrong and what to do. Holds nothing that the server sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub message: String,
    /// The same again a little later may succeed.
    pub passing: bool,
}

impl Failure {
    /// It will not get better by itself.
    pub fn lasting(message: impl Into<String>) -> Self {
        Failure { message: message.into(), passing: false }
    }

    pub fn passing(message: impl Into<String>) -> Self {
        Failure { message: message.into(), passing: true }
    }

    /// Ours to mend; `cause` goes to the log only.
    pub fn internal(cause: impl std::fmt::Display) -> Self {
        tracing::error!(%cause, "fetching a git source failed inside");
        Failure::passing("the gateway failed; its log says why")
    }
}
