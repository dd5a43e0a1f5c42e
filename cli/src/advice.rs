//! What to do next after each reason.

use agentrun_crds::conditions::{Fault, Reason};

/// One or two sentences; `{run}` stands for the run's name.
pub fn after(reason: Reason) -> &'static str {
    use Reason::*;
    match reason {
        Succeeded => "Read the patch, then apply it: kubectl agentrun diff {run}; kubectl agentrun patch {run} | git apply",
        Cancelled => "Nothing. To do it again: kubectl agentrun rerun {run}",
        InvalidSpec => "Change the spec as the message says and submit another run; a run's spec never changes.",
        PolicyMissing => "Ask the platform team for an AgentPolicy named default in this namespace: kubectl agentrun doctor",
        PolicyDenied => "Ask for what the policy allows: kubectl get agentpolicy default -o yaml; or ask the platform team to allow it.",
        QuotaExceeded => {
            "Wait until runs of this namespace have ended (kubectl agentrun list), or cancel some, then: kubectl agentrun rerun {run}"
        }
        ImagePullFailed => "Check the image's name, and that the nodes may pull it; then submit again with --image.",
        Unschedulable => "The cluster has no room or no fitting node. Try later: kubectl agentrun rerun {run}",
        StartupDeadlineExceeded => {
            "The sandbox was too slow to start. Try later: kubectl agentrun rerun {run}; tell the platform team if it stays so."
        }
        PodRejected => "Show the message to the platform team: something in the cluster refuses sandbox Pods.",
        ConfinementFailed => "Show the message to the platform team: this node lacks a wall that the policy demands.",
        NetworkNotEnforced => "Show the message to the platform team: sandboxes reach more here than the gateway.",
        SandboxLost => {
            "Nothing of it is repeated by itself. Look at what it did (kubectl agentrun logs {run}), then: kubectl agentrun rerun {run}"
        }
        OutOfMemory => "Ask for less at once, or ask the platform team for more memory in the policy.",
        Evicted => "The node was short of something. Try again: kubectl agentrun rerun {run}",
        WorkspaceFull => "Find what filled the workspace (kubectl agentrun logs {run}), or ask for a larger one in the policy.",
        SourceUnavailable => {
            "Submit again with --dir, whose archive must arrive before the startup deadline, or with a --git URL and --ref that the message has nothing against."
        }
        BudgetExhausted => {
            "See where it went (kubectl agentrun usage {run}, kubectl agentrun logs {run}), then submit with a larger --requests or --cost, or a smaller task; where the message names the namespace's budget, when that begins anew."
        }
        DeadlineExceeded => "Submit with a longer --wall-time, or a smaller task.",
        StepLimitReached => "Submit with more --max-steps, or a smaller task.",
        ChecksFailed => {
            "Read what the check printed (kubectl agentrun logs {run}) and what was changed (kubectl agentrun diff {run}); make the instruction clearer, then submit again."
        }
        CheckUnavailable => "The image lacks the check's program: choose another --image or another --check.",
        PathNotAllowed => {
            "Look at the changes (kubectl agentrun diff {run}); widen --allowed-path, or say in the instruction what must stay."
        }
        NoChanges => "The agent found nothing to do and a check fails; make the instruction clearer, then submit again.",
        AgentError => "Read the end of the log: kubectl agentrun logs {run}",
        ResultInvalid => "The sandbox broke a rule of the protocol; show the message and the log to the platform team.",
        ProviderAuthFailed => "The platform team must renew the provider's key.",
        ProviderMisconfigured => "The platform team must mend the ModelProvider; the gateway's log says what is wrong with it.",
        GatewayUnavailable => "The platform team must look at the gateway and its stores; then: kubectl agentrun rerun {run}",
        ProviderUnavailable => "Try later: kubectl agentrun rerun {run}",
        Denied => "See what was denied and why (kubectl agentrun approvals {run}); change the task so that it is not needed.",
        ApprovalExpired => "Have somebody ready who may approve, then: kubectl agentrun rerun {run}",
        AlreadyRan => "The earlier run's result stands. To run it again: kubectl agentrun rerun {run}, or change rerunKey in the manifest.",
        Compromised => "Tell the platform team at once: somebody else presented this run's credentials. Do not use its patch.",
    }
}

/// Whose turn it is.
pub fn whose(fault: Fault) -> &'static str {
    match fault {
        Fault::Nobody => "nobody's",
        Fault::User => "the submitter's",
        Fault::Agent => "the agent's",
        Fault::Provider => "the model provider's",
        Fault::Platform => "the platform's",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_advice_of_its_own_and_its_commands_exist() {
        use clap::CommandFactory;
        let arguments = crate::arguments::Arguments::command();
        let verbs: Vec<&str> = arguments.get_subcommands().map(clap::Command::get_name).collect();
        let mut seen = std::collections::HashSet::new();
        for reason in Reason::ALL {
            let advice = after(*reason);
            assert!(seen.insert(advice), "{reason:?}");
            for after in advice.split("kubectl agentrun ").skip(1) {
                let verb = after.split([' ', ';', ')', ',']).next().unwrap_or_default();
                assert!(verbs.contains(&verb), "{reason:?}: {verb}");
            }
        }
    }
}
