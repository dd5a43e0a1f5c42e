//! The ways to fail.

use http::StatusCode;

/// What a write meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// 409: somebody else was quicker.
    Conflict,
    /// 429 with `Retry-After: 1`.
    TooManyRequests,
    /// 500.
    InternalError,
    /// 503.
    Unavailable,
    /// The connection ends, and nothing was written.
    CutBefore,
    /// It was written, and the connection ends instead of an answer.
    CutAfter,
    /// It arrives twice; the answer is that to the second.
    Duplicated,
}

impl Fault {
    pub const ALL: [Fault; 7] = [
        Fault::Conflict,
        Fault::TooManyRequests,
        Fault::InternalError,
        Fault::Unavailable,
        Fault::CutBefore,
        Fault::CutAfter,
        Fault::Duplicated,
    ];

    /// The refusal that is answered in place of the API server, with its reason as in a Kubernetes `Status`.
    pub fn refusal(self) -> Option<(StatusCode, &'static str)> {
        match self {
            Fault::Conflict => Some((StatusCode::CONFLICT, "Conflict")),
            Fault::TooManyRequests => Some((StatusCode::TOO_MANY_REQUESTS, "TooManyRequests")),
            Fault::InternalError => Some((StatusCode::INTERNAL_SERVER_ERROR, "InternalError")),
            Fault::Unavailable => Some((StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")),
            Fault::CutBefore | Fault::CutAfter | Fault::Duplicated => None,
        }
    }
}

/// What a watch meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchFault {
    /// It ends after its first event.
    Dropped,
    /// It ends in the middle of its first event.
    Truncated,
    /// It says at once that what it should continue from is too old (410 in an event).
    Gone,
    /// Each event comes twice.
    Repeated,
    /// It comes a few bytes at a time.
    Dripping,
}

impl WatchFault {
    pub const ALL: [WatchFault; 5] =
        [WatchFault::Dropped, WatchFault::Truncated, WatchFault::Gone, WatchFault::Repeated, WatchFault::Dripping];

    /// Whether no event comes through it whole.
    pub fn stops_all(self) -> bool {
        matches!(self, WatchFault::Truncated | WatchFault::Gone)
    }
}
