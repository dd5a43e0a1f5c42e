//! Condition types and the closed list of reasons, with who is at fault.

/// Condition types of an AgentRun.
pub mod types {
    pub const ACCEPTED: &str = "Accepted";
    pub const SANDBOX_READY: &str = "SandboxReady";
    pub const EXCHANGED: &str = "Exchanged";
    /// Whether the sandbox is seen to reach nothing but the gateway; it stands from the exchange on.
    pub const NETWORK_ENFORCED: &str = "NetworkEnforced";
    pub const BUDGET_AVAILABLE: &str = "BudgetAvailable";
    pub const AWAITING_APPROVAL: &str = "AwaitingApproval";
    /// True at every terminal phase; its reason says how the run ended.
    pub const COMPLETE: &str = "Complete";
    /// True, or False with the reason; set together with Complete.
    pub const SUCCEEDED: &str = "Succeeded";
    /// kstatus.
    pub const RECONCILING: &str = "Reconciling";
    pub const STALLED: &str = "Stalled";
    pub const READY: &str = "Ready";
    /// Children that could not be removed; never an outcome.
    pub const CLEANUP_FAILED: &str = "CleanupFailed";
    /// `Unknown` where a kubelet does not answer.
    pub const SANDBOX_GONE: &str = "SandboxGone";
}

macro_rules! reasons {
    ($($name:ident $fault:ident $doc:literal,)*) => {
        /// How a run ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason { $(#[doc = $doc] $name,)* }

        impl Reason {
            /// Every reason, in the order of the documentation.
            pub const ALL: &[Reason] = &[$(Reason::$name,)*];

            /// The word in `Complete.reason`.
            pub fn as_str(self) -> &'static str {
                match self { $(Reason::$name => stringify!($name),)* }
            }

            /// One sentence for the documentation.
            pub fn meaning(self) -> &'static str {
                match self { $(Reason::$name => $doc,)* }
            }

            /// Whose fault it is.
            pub fn fault(self) -> Fault {
                match self { $(Reason::$name => Fault::$fault,)* }
            }
        }
    };
}

/// Who has to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Nobody,
    User,
    Agent,
    Provider,
    Platform,
}

reasons! {
    Succeeded Nobody "The checks passed and the changes are within the allowed paths.",
    Cancelled Nobody "Somebody asked the run to end.",
    InvalidSpec User "The spec cannot be run as it stands.",
    PolicyMissing Platform "The namespace has no AgentPolicy named default.",
    PolicyDenied User "The policy does not allow what the run asks for.",
    QuotaExceeded User "Too many runs of the namespace wait already.",
    ImagePullFailed User "The agent's image could not be pulled.",
    Unschedulable Platform "No node could take the Pod in time.",
    StartupDeadlineExceeded Platform "The sandbox did not come up in time.",
    PodRejected Platform "The API server or the kubelet refused the Pod.",
    ConfinementFailed Platform "A wall of the sandbox is missing on this node.",
    NetworkNotEnforced Platform "The sandbox reached, or could reach, more than the gateway.",
    SandboxLost Platform "The Pod vanished or died; what it did is not repeated.",
    OutOfMemory Agent "The sandbox used more memory than it may.",
    Evicted Platform "The node evicted the Pod.",
    WorkspaceFull Agent "The workspace's size limit was exceeded.",
    SourceUnavailable User "The source could not be staged.",
    BudgetExhausted Agent "The budget was spent before the work was done.",
    DeadlineExceeded Agent "The wall time passed before the work was done.",
    StepLimitReached Agent "The agent used all its steps.",
    ChecksFailed Agent "A check did not exit with 0.",
    CheckUnavailable User "A check's program could not be started.",
    PathNotAllowed Agent "A file outside the allowed paths was changed.",
    NoChanges Agent "The agent changed nothing and a check fails.",
    AgentError Agent "The agent gave up or failed.",
    ResultInvalid Agent "What the sandbox sent as its result is not valid.",
    ProviderAuthFailed Provider "The model provider refused our key.",
    ProviderUnavailable Provider "The model provider did not answer, after retries.",
    ProviderMisconfigured Platform "The ModelProvider is not set up rightly.",
    GatewayUnavailable Platform "The gateway could not do its part, after retries.",
    Denied User "A person denied a needed action.",
    ApprovalExpired User "Nobody decided in time.",
    AlreadyRan Nobody "A run of this name and spec has run before; change rerunKey to run it again.",
    Compromised Platform "A second holder presented this run's credentials.",
}
