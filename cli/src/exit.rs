//! What the process says with its exit status. One table, for code, tests and documentation.

use agentrun_crds::agent_run_status::Phase;
use agentrun_crds::conditions::Reason;

macro_rules! exits {
    ($($name:ident $code:literal $doc:literal,)*) => {
        /// The status that the process ends with.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Exit { $(#[doc = $doc] $name,)* }

        impl Exit {
            /// Every status, in order.
            pub const ALL: &[Exit] = &[$(Exit::$name,)*];

            pub fn code(self) -> u8 {
                match self { $(Exit::$name => $code,)* }
            }

            /// One sentence for the documentation.
            pub fn meaning(self) -> &'static str {
                match self { $(Exit::$name => $doc,)* }
            }
        }
    };
}

exits! {
    Succeeded 0 "The command did what it was asked; a run that was waited for succeeded.",
    Failed 1 "The run failed for a reason without a status of its own, or the command failed on this machine.",
    Usage 2 "The command line or the manifest is wrong; nothing was sent.",
    NotSubmitted 3 "The run was refused before it started, does not exist, or the cluster did not answer.",
    ChecksFailed 4 "A check failed or could not be run.",
    NotApproved 5 "A person denied a needed action, or nobody decided in time.",
    BudgetSpent 6 "The budget or the steps were spent before the work was done.",
    Cancelled 7 "The run was cancelled.",
    DeadlineExceeded 8 "The run's wall time passed before the work was done.",
    StillRunning 9 "The time of --timeout passed; the run goes on.",
    NotOurFault 10 "The platform or the model provider is at fault; trying again may help.",
    Interrupted 130 "Interrupted by the keyboard; the run goes on.",
    ReaderGone 141 "Whoever read our output closed it.",
}

impl Exit {
    /// Of a failed run.
    pub fn of_reason(reason: Reason) -> Exit {
        use Reason::*;
        match reason {
            Succeeded => Exit::Succeeded,
            Cancelled => Exit::Cancelled,
            InvalidSpec | PolicyMissing | PolicyDenied | QuotaExceeded | SourceUnavailable => Exit::NotSubmitted,
            ChecksFailed | CheckUnavailable | NoChanges => Exit::ChecksFailed,
            Denied | ApprovalExpired => Exit::NotApproved,
            BudgetExhausted | StepLimitReached => Exit::BudgetSpent,
            DeadlineExceeded => Exit::DeadlineExceeded,
            Unschedulable
            | StartupDeadlineExceeded
            | PodRejected
            | ConfinementFailed
            | NetworkNotEnforced
            | SandboxLost
            | Evicted
            | Compromised
            | ProviderAuthFailed
            | ProviderUnavailable
            | ProviderMisconfigured
            | GatewayUnavailable => Exit::NotOurFault,
            ImagePullFailed | OutOfMemory | WorkspaceFull | PathNotAllowed | AgentError | ResultInvalid | AlreadyRan => Exit::Failed,
        }
    }

    /// Of a run that has ended. The phase comes first: a run that `AlreadyRan` has the phase of the one before it.
    pub fn of_run(phase: Phase, reason: &str) -> Exit {
        match phase {
            Phase::Succeeded => Exit::Succeeded,
            Phase::Cancelled => Exit::Cancelled,
            _ => known(reason).map_or(Exit::Failed, Exit::of_reason),
        }
    }
}

/// The table for `--help`.
pub fn help() -> String {
    let rows: Vec<String> = Exit::ALL.iter().map(|exit| format!("  {:>3}  {}", exit.code(), exit.meaning())).collect();
    format!("Exit status:\n{}", rows.join("\n"))
}

/// The reason of this name; a newer operator may know more.
pub fn known(reason: &str) -> Option<Reason> {
    Reason::ALL.iter().copied().find(|known| known.as_str() == reason)
}

#[cfg(test)]
mod tests {
    use agentrun_crds::conditions::Fault;

    use super::*;

    #[test]
    fn every_reason_has_a_status_that_fits_its_fault() {
        for reason in Reason::ALL {
            let exit = Exit::of_reason(*reason);
            let fits = match reason.fault() {
                Fault::Provider => exit == Exit::NotOurFault,
                Fault::Platform => exit == Exit::NotOurFault || *reason == Reason::PolicyMissing,
                Fault::User | Fault::Agent => exit != Exit::NotOurFault && exit != Exit::Succeeded,
                Fault::Nobody => true,
            };
            assert!(fits, "{reason:?} ends with {exit:?}");
            assert_eq!(exit == Exit::Succeeded, *reason == Reason::Succeeded, "{reason:?}");
            assert_eq!(known(reason.as_str()), Some(*reason));
        }
    }

    #[test]
    fn the_phase_comes_before_the_reason() {
        for (phase, reason, exit) in [
            (Phase::Succeeded, "Succeeded", 0),
            (Phase::Succeeded, "AlreadyRan", 0),
            (Phase::Failed, "AlreadyRan", 1),
            (Phase::Cancelled, "AlreadyRan", 7),
            (Phase::Cancelled, "Cancelled", 7),
            (Phase::Failed, "ChecksFailed", 4),
            (Phase::Failed, "Denied", 5),
            (Phase::Failed, "BudgetExhausted", 6),
            (Phase::Failed, "DeadlineExceeded", 8),
            (Phase::Failed, "SandboxLost", 10),
            (Phase::Failed, "PolicyDenied", 3),
            (Phase::Failed, "SomethingNew", 1),
        ] {
            assert_eq!(Exit::of_run(phase, reason).code(), exit, "{phase:?} {reason}");
        }
    }

    #[test]
    fn no_two_have_one_code() {
        let codes: std::collections::BTreeSet<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        assert_eq!(codes.len(), Exit::ALL.len());
    }
}
