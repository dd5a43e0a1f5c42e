//! Why something was not done with an approval, and how clients are told.

use agentrun_crds::agent_run_status::{Approval, ApprovalScope, ApprovalState};
use http::{HeaderValue, StatusCode, header};

use crate::error::ApiError;

/// A refusal; nothing but what had lain past its time has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("there is no approval {0} in the run's status; the run's events say what became of earlier ones")]
    Unknown(i64),
    #[error("{0} approvals of this run are open already; one has to be decided, or to expire, before another can be asked for")]
    TooManyOpen(usize),
    #[error("the run's status holds {0} approvals, and none can leave it until its event is stored; try again")]
    TooManyListed(usize),
    #[error("this run has asked {0} times, which is as often as a run may")]
    AskedTooOften(i64),
    #[error("it has become {0}; a decision is made once")]
    AlreadyDecided(String),
    #[error("nobody decided, or used what was allowed, before it expired; that counts as denied")]
    Expired,
    #[error("the run has ended or is about to; there is nothing left to decide")]
    Completed,
    #[error("the approval is bound to another digest; look at it again")]
    AnotherDigest,
    #[error("nobody has decided yet")]
    StillPending,
    #[error("it was denied")]
    Denied,
    #[error("it was consumed by another execution; an approval is used once")]
    AlreadyConsumed,
}

impl Refused {
    pub(super) fn already_decided(approval: &Approval) -> Self {
        let state = match (approval.state, approval.scope) {
            (ApprovalState::Denied, _) => "denied",
            (ApprovalState::Consumed, Some(ApprovalScope::Session)) => "allowed for the session, and consumed",
            (ApprovalState::Consumed, _) => "allowed once, and consumed",
            (_, Some(ApprovalScope::Session)) => "allowed for the session",
            _ => "allowed once",
        };
        let by = approval.decided_by.as_deref().unwrap_or("somebody");
        let at = approval.decided_at.as_ref().map(|at| format!(" at {}", at.0)).unwrap_or_default();
        Refused::AlreadyDecided(format!("{state}, decided by {by}{at}"))
    }

    pub(super) fn code(&self) -> &'static str {
        match self {
            Refused::Unknown(_) => "not_found",
            Refused::TooManyOpen(_) | Refused::TooManyListed(_) | Refused::AskedTooOften(_) => "too_many_approvals",
            Refused::AlreadyDecided(_) => "already_decided",
            Refused::Expired => "approval_expired",
            Refused::Completed => "already_completed",
            Refused::AnotherDigest => "digest_mismatch",
            Refused::StillPending => "approval_pending",
            Refused::Denied => "approval_denied",
            Refused::AlreadyConsumed => "already_consumed",
        }
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let status = match refused {
            Refused::Unknown(_) => StatusCode::NOT_FOUND,
            // Storing events takes a moment; the others end with the run or a decision.
            Refused::TooManyListed(_) => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::CONFLICT,
        };
        let error = ApiError::new(status, refused.code(), refused.to_string());
        if status == StatusCode::TOO_MANY_REQUESTS { error.header(header::RETRY_AFTER, HeaderValue::from_static("1")) } else { error }
    }
}
