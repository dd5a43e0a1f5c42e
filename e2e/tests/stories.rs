//! The user stories, on the real node with the chart installed: `make e2e`, or `make e2e STORY=happy_path`. One file each.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod stories {
    mod already_ran;
    mod approval_decided;
    mod bad_spec;
    mod budget_exhausted;
    mod canary;
    mod cancel;
    mod delete_running;
    mod developer;
    mod exchange_repeated;
    mod failing_check;
    mod fork_bomb;
    mod gateway_away;
    mod gateway_killed;
    mod git_source;
    mod happy_path;
    mod harnesses;
    mod hostile_network;
    mod network_gate;
    mod never_starts;
    mod operator_killed;
    mod path_not_allowed;
    mod plugin;
    mod pod_killed;
    mod provider_recovers;
    mod queue;
    mod two_teams;
    mod upgrade;
    mod wall_time;
}
