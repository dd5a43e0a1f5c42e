//! The ledger of several gateways.

use agentrun_crds::budget::{Amount, Spent};

use super::*;
use crate::store::{BudgetLedger, Taken, TakenSlice};

fn spent(requests: i64, output_tokens: i64) -> Spent {
    Spent { requests, output_tokens, ..Spent::default() }
}

fn slice(id: &str) -> TakenSlice {
    TakenSlice { id: id.into(), amount: Amount { requests: 8, ..Amount::default() }, used: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn spent_is_shared_and_rises_and_slices_are_ones_own() {
    let bed = Bed::new();
    let (here, there) = (bed.open("gateway-0").await, bed.open("gateway-1").await);
    here.take("a", Taken { spent: spent(5, 10), slice: Some(slice("ours")) }).await.expect("taken");
    there.take("a", Taken { spent: spent(3, 20), slice: Some(slice("theirs")) }).await.expect("taken");
    assert_eq!(here.spent("a").await, Ok(spent(5, 20)), "the larger in each dimension");
    let taken = |id| vec![("a".to_owned(), Taken { spent: spent(5, 20), slice: Some(slice(id)) })];
    assert_eq!((here.taken().await, there.taken().await), (Ok(taken("ours")), Ok(taken("theirs"))));
    here.take("a", Taken { spent: spent(6, 20), slice: None }).await.expect("given back");
    assert_eq!(there.taken().await.map(|taken| taken[0].1.slice.clone()), Ok(Some(slice("theirs"))));
    here.forget("a").await.expect("forgotten");
    assert_eq!((here.taken().await, there.taken().await), (Ok(vec![]), Ok(vec![])));
}

#[tokio::test(flavor = "multi_thread")]
async fn notes_are_believed_on_the_disk_that_has_them_only() {
    let bed = Bed::new();
    let store = bed.open("gateway-0").await;
    store.take("a", Taken { spent: spent(1, 1), slice: Some(slice("s")) }).await.expect("taken");
    let used = Amount { requests: 2, ..Amount::default() };
    store.note("a", "s", used, 2);
    drop(store);
    let used_of = async |store: Arc<Postgres>| store.taken().await.expect("taken")[0].1.slice.as_ref().expect("a slice").used;
    assert_eq!(used_of(bed.open("gateway-0").await).await, Some((used, 2)));
    std::fs::remove_dir_all(bed.folder.path().join("gateway-0")).expect("another machine's disk");
    assert_eq!(used_of(bed.open("gateway-0").await).await, None, "it counts in full");
}
