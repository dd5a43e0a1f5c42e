//! What every back end must do, one test a promise. A back end runs them with `event_store!(make)`,
//! `artifact_store!(make)` and `budget_ledger!(make)`, where `make` opens an empty store with the given quotas.

mod artifact_cases;
mod event_cases;
mod ledger_cases;

pub(super) use artifact_cases::*;
pub(super) use event_cases::*;
pub(super) use ledger_cases::*;

use std::any::Any;
use std::sync::Arc;

use super::{ArtifactStore, BudgetLedger, EventStore, RunRef};

/// A store under test, and what must live as long.
pub(super) struct Subject {
    pub events: Arc<dyn EventStore>,
    pub artifacts: Arc<dyn ArtifactStore>,
    pub ledger: Arc<dyn BudgetLedger>,
    pub _keep: Box<dyn Any + Send>,
}

pub(super) fn run(uid: &str) -> RunRef {
    RunRef { uid: uid.into(), namespace: "team".into(), name: format!("run-{uid}") }
}

macro_rules! event_store {
    ($make:ident) => {
        $crate::store::suite::cases! { $make
            numbers_are_dense_and_runs_apart
            a_key_is_stored_once
            a_batch_is_whole_or_not_at_all
            the_two_origins_have_keys_of_their_own
            numbers_stay_dense_under_concurrency
            nothing_follows_the_end
            output_goes_first_when_the_quota_is_met
            the_gateways_quota_spares_what_is_essential
            pages_are_bounded_and_complete
            cursors_beyond_the_end_are_refused
            followers_are_woken
            purged_logs_show_a_gap_and_the_end
        }
    };
}

macro_rules! artifact_store {
    ($make:ident) => {
        $crate::store::suite::cases! { $make
            a_blob_comes_back_and_only_to_its_run
            a_wrong_digest_keeps_nothing
            a_large_blob_keeps_nothing
            repeating_an_upload_is_harmless
            quotas_hold_for_parallel_uploads
            a_namespace_has_a_quota
            names_stand_for_one_blob
            purged_blobs_go_unless_others_refer_to_them
        }
    };
}

macro_rules! budget_ledger {
    ($make:ident) => {
        $crate::store::suite::cases! { $make
            what_is_taken_replaces_what_was_until_it_is_forgotten
            notes_are_of_their_slice
        }
    };
}

macro_rules! cases {
    ($make:ident $($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            $crate::store::suite::$name(&$make).await;
        }
    )*};
}

pub(super) use {artifact_store, budget_ledger, cases, event_store};
