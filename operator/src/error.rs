//! What can go wrong in a reconcile, in classes that alone decide when to try again. Waiting and users' mistakes are no
//! errors: they are plans and conditions.

use std::time::Duration;

/// Why a reconcile did not get to its end.
#[derive(thiserror::Error, Debug)]
pub enum Error {
    #[error("could not {what}: {}", said(source))]
    Api {
        /// The operation, such as `read the AgentPolicy`.
        what: &'static str,
        #[source]
        source: kube::Error,
    },
    #[error("the reconcile took longer than {0:?}")]
    Timeout(Duration),
    #[error("the system's random generator failed")]
    Random,
    #[error("the world does not come to rest: {0} rounds, and more to write")]
    Restless(usize),
    #[error("the reconcile panicked: {0}")]
    Panic(String),
}

/// What the API server said, without the client's dump of it.
pub fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} {}: {}", status.code, status.reason, status.message.trim()),
        other => other.to_string(),
    }
}

/// Classes of errors; closed, so it serves as a metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Will pass: the network, the API server, a conflict.
    Transient,
    /// The API server does not let us: the platform team has to act.
    Denied,
    /// Ours.
    Bug,
}

impl Error {
    pub fn api(what: &'static str) -> impl FnOnce(kube::Error) -> Error {
        move |source| Error::Api { what, source }
    }

    /// What did not succeed, for telling whether the same thing failed again.
    pub fn step(&self) -> &'static str {
        match self {
            Error::Api { what, .. } => what,
            Error::Timeout(_) => "end in time",
            Error::Random => "draw at random",
            Error::Restless(_) => "come to rest",
            Error::Panic(_) => "run",
        }
    }

    pub fn class(&self) -> Class {
        match self {
            Error::Api { source: kube::Error::Api(status), .. } if matches!(status.code, 401 | 403) => Class::Denied,
            Error::Api { source: kube::Error::Api(status), .. } if matches!(status.code, 400 | 422) => Class::Bug,
            Error::Api { .. } | Error::Timeout(_) | Error::Random => Class::Transient,
            Error::Restless(_) | Error::Panic(_) => Class::Bug,
        }
    }
}

impl Class {
    pub fn label(self) -> &'static str {
        match self {
            Class::Transient => "transient",
            Class::Denied => "denied",
            Class::Bug => "bug",
        }
    }

    /// First and longest pause.
    pub fn pauses(self) -> (Duration, Duration) {
        match self {
            Class::Transient => (Duration::from_millis(500), Duration::from_secs(60)),
            Class::Denied => (Duration::from_secs(5), Duration::from_secs(300)),
            Class::Bug => (Duration::from_secs(10), Duration::from_secs(600)),
        }
    }
}
