//! Slices by example.

use super::*;

#[test]
fn most_calls_of_a_large_budget_take_no_write() {
    let mut budget = Budget::new(Limit { requests: 100_000, ..Limit::default() });
    let mut lease = Lease::default();
    let ask = Ask { requests: 1, input_tokens: 1000, output_tokens: 64, price: None };
    let mut writes = 0;
    for call in 0..10_000 {
        let id = format!("call-{call}");
        if lease.admit(&id, &ask).is_none() {
            writes += 1;
            let view = lease.begin(true);
            let how = Renewal {
                holder: "a",
                id: format!("slice-{writes}"),
                now: 0,
                grow: true,
                ahead: 2,
                call_in: true,
                rest: false,
                overrun_closes: true,
            };
            let renewed = view.renew(&mut view.doubtful(), &mut budget, &[(ask, true)], &how);
            lease.written(&renewed, std::slice::from_ref(&id));
        }
        lease.settle(
            &id,
            Charge::Actual { amount: Amount { requests: 1, input_tokens: 10, output_tokens: 5, cost_micros: 0 }, attempts: 1 },
        );
    }
    assert!(writes <= 20, "{writes} writes");
}

#[test]
fn near_the_limit_nothing_is_taken_in_advance_and_a_request_calls_in_what_others_hold() {
    let renew = |lease: &mut Lease, budget: &mut Budget, holder: &str, id: &str, asks: &[(Ask, bool)]| {
        let view = lease.begin(true);
        let how = Renewal { holder, id: id.into(), now: 0, grow: true, ahead: 2, call_in: true, rest: false, overrun_closes: true };
        let renewed = view.renew(&mut view.doubtful(), budget, asks, &how);
        let ids: Vec<String> = (0..asks.len()).map(|n| format!("{id}-{n}")).collect();
        lease.written(&renewed, &ids);
        renewed
    };
    let ask = (Ask { requests: 1, input_tokens: 1, output_tokens: 1, price: None }, true);
    let mut budget = Budget::new(Limit { requests: 100, ..Limit::default() });
    let (mut a, mut b) = (Lease::default(), Lease::default());
    assert!(renew(&mut a, &mut budget, "a", "a1", &[ask]).answers[0].is_ok());
    assert_eq!((budget.reserved().requests, budget.has_slices()), (9, true), "one in use and eight in advance");
    // The other takes what is left, then wants one more.
    let renewed = renew(&mut b, &mut budget, "b", "b1", &[ask; 92]);
    assert_eq!(renewed.answers.iter().filter(|answer| answer.is_ok()).count(), 91);
    assert!(matches!(renewed.answers[91], Err(NotAdmitted::Contended(_))) && renewed.starved, "{renewed:?}");
    assert!(budget.reservations.iter().any(|r| r.is_request() && r.holder == "b"));
    // The first sees it and gives back what no call holds.
    renew(&mut a, &mut budget, "a", "a2", &[]);
    assert_eq!((a.has_slack(), budget.has_slices()), (false, false));
    let renewed = renew(&mut b, &mut budget, "b", "b2", &[ask]);
    assert!(renewed.answers[0].is_ok() && !renewed.starved);
    assert!(!budget.reservations.iter().any(Reservation::is_request), "the request is withdrawn: {budget:?}");
    let renewed = renew(&mut b, &mut budget, "b", "b3", &[ask; 8]);
    assert!(matches!(renewed.answers[7], Err(NotAdmitted::Exhausted(_))), "what calls hold is as good as spent: {renewed:?}");
}

#[test]
fn a_status_from_an_older_backup_is_raised_before_anything_is_admitted() {
    let ask = Ask { requests: 1, input_tokens: 10, output_tokens: 5, price: None };
    for (limit, in_flight, expected) in [(1000, false, 12), (1000, true, 13), (13, true, 13)] {
        let mut budget = Budget::new(Limit { requests: limit, ..Limit::default() });
        let backup = budget.clone();
        let mut lease = Lease::default();
        let renew = |lease: &mut Lease, budget: &mut Budget, id: String, asks: &[(Ask, bool)]| {
            let view = lease.begin(true);
            let how =
                Renewal { holder: "a", id: id.clone(), now: 0, grow: true, ahead: 2, call_in: true, rest: false, overrun_closes: true };
            let renewed = view.renew(&mut view.doubtful(), budget, asks, &how);
            lease.written(&renewed, std::slice::from_ref(&id));
            renewed
        };
        for call in 0..12 {
            let id = call.to_string();
            if lease.admit(&id, &ask).is_none() {
                assert!(renew(&mut lease, &mut budget, id.clone(), &[(ask, true)]).answers[0].is_ok());
            }
            assert!(lease.settle(&id, Charge::Full { attempts: 1 }).is_some());
        }
        if in_flight && lease.admit("open", &ask).is_none() {
            assert!(renew(&mut lease, &mut budget, "open".into(), &[(ask, true)]).answers[0].is_ok());
        }
        budget = backup;
        let renewed = renew(&mut lease, &mut budget, "after".into(), &[(ask, true)]);
        assert!(renewed.restored);
        assert_eq!(budget.spent.requests, expected, "limit {limit}, in flight {in_flight}");
        assert_eq!(renewed.answers[0].is_ok(), limit == 1000, "what was spent is not there to be spent again");
    }
}

#[test]
fn what_others_have_written_as_spent_is_not_there_to_be_spent_and_is_charged_once() {
    let ask = (Ask { requests: 1, input_tokens: 1, output_tokens: 1, price: None }, true);
    let renew = |lease: &mut Lease, budget: &mut Budget, id: &str, shared: i64| {
        let mut view = lease.begin(true);
        view.share(Spent { requests: shared, ..Spent::default() });
        let how = Renewal { holder: "a", id: id.into(), now: 0, grow: true, ahead: 2, call_in: true, rest: false, overrun_closes: true };
        let renewed = view.renew(&mut view.doubtful(), budget, &[ask], &how);
        lease.written(&renewed, &[id.to_owned()]);
        renewed
    };
    // Another process has spent ten; then an older backup came back.
    let mut budget = Budget::new(Limit { requests: 10, ..Limit::default() });
    let renewed = renew(&mut Lease::default(), &mut budget, "a1", 10);
    assert!(renewed.restored && matches!(renewed.answers[0], Err(NotAdmitted::Exhausted(_))), "{renewed:?}");
    assert_eq!(budget.spent.requests, 10);
    // Another process has charged our slice in full and has written so: what we took of it does not come on top.
    let (mut lease, mut budget) = (Lease::default(), Budget::new(Limit { requests: 1000, ..Limit::default() }));
    assert!(renew(&mut lease, &mut budget, "a2", 0).answers[0].is_ok());
    let slice = lease.slice_id().expect("a slice").to_owned();
    budget.settle(&slice, None, 1);
    let charged = budget.spent.requests;
    let renewed = renew(&mut lease, &mut budget, "a3", charged);
    assert!(renewed.lost && !renewed.restored, "{renewed:?}");
    assert_eq!(budget.spent.requests, charged);
}
