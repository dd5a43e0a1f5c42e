//! Every change of an approval, as a function of the run's status and the time. Pure: called again on the live object after a
//! conflict. What lies past its time is found out here, by whoever comes first, and counts as denied.

use std::collections::BTreeSet;

use agentrun_crds::AgentRunStatus;
use agentrun_crds::agent_run_status::{Approval, ApprovalScope, ApprovalState, ApprovalTotals};
use agentrun_protocol::people::Decision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::refusal::Refused;

/// Most approvals of a run that are pending, or allowed and not consumed.
const MAX_OPEN: usize = 16;
/// Most approvals in status.
pub(super) const MAX_LISTED: usize = 32;
/// How often one run may ask. Bounds its events and what is stored for them.
const MAX_ASKED: i64 = 1_000;

/// What is asked for.
pub(super) struct Question {
    /// SHA-256 (hex) of the action's document.
    pub digest: String,
    pub kind: String,
    pub summary: String,
    pub timeout_seconds: i64,
}

/// What a person says.
pub(super) struct Saying<'a> {
    pub decision: Decision,
    /// What they believe to decide on.
    pub digest: Option<&'a str>,
    pub reason: Option<&'a str>,
    pub by: &'a str,
}

/// How the run stands to decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Going,
    /// Somebody asked it to end.
    Ending,
    Ended,
}

/// The record for a question: the one that stands for the same action already, or a new one, pending. `recorded` are the
/// final ones whose event is stored, so that they may leave the list.
pub(super) fn ask(status: &mut AgentRunStatus, question: &Question, recorded: &BTreeSet<i64>, now: i64) -> Result<i64, Refused> {
    expire(status, now, Life::Going);
    if let Some(standing) = room(status, &question.digest)? {
        return Ok(standing);
    }
    make_room(&mut status.approvals, recorded)?;
    let id = status.next_approval_id.unwrap_or(1);
    status.next_approval_id = Some(id.saturating_add(1));
    change(status, now, |approvals, totals| {
        totals.asked += 1;
        approvals.push(Approval {
            id,
            digest: question.digest.clone(),
            kind: question.kind.clone(),
            summary: question.summary.clone(),
            requested_at: time(now),
            expires_at: time(now.saturating_add(question.timeout_seconds)),
            state: ApprovalState::Pending,
            scope: None,
            decided_by: None,
            decided_at: None,
            reason: None,
            execution_id: None,
        });
    });
    Ok(id)
}

/// The open record of this very action, or whether there may be one more.
pub(super) fn room(status: &AgentRunStatus, digest: &str) -> Result<Option<i64>, Refused> {
    if let Some(standing) = status.approvals.iter().find(|approval| is_open(approval) && approval.digest == digest) {
        return Ok(Some(standing.id));
    }
    if status.approvals.iter().filter(|approval| is_open(approval)).count() >= MAX_OPEN {
        return Err(Refused::TooManyOpen(MAX_OPEN));
    }
    if status.approval_totals.is_some_and(|totals| totals.asked >= MAX_ASKED) {
        return Err(Refused::AskedTooOften(MAX_ASKED));
    }
    Ok(None)
}

/// Final ones leave, oldest first, session grants last.
fn make_room(approvals: &mut Vec<Approval>, recorded: &BTreeSet<i64>) -> Result<(), Refused> {
    while approvals.len() >= MAX_LISTED {
        let may_leave = |approval: &&Approval| !is_open(approval) && recorded.contains(&approval.id);
        let first = approvals.iter().filter(may_leave).min_by_key(|approval| (approval.scope == Some(ApprovalScope::Session), approval.id));
        let Some(id) = first.map(|approval| approval.id) else { return Err(Refused::TooManyListed(MAX_LISTED)) };
        approvals.retain(|approval| approval.id != id);
    }
    Ok(())
}

/// A person's decision. The same one by the same person again is no mistake.
pub(super) fn decide(status: &mut AgentRunStatus, id: i64, saying: &Saying<'_>, life: Life, now: i64) -> Result<Approval, Refused> {
    expire(status, now, life);
    let approval = find(status, id)?;
    if saying.digest.is_some_and(|digest| digest != approval.digest) {
        return Err(Refused::AnotherDigest);
    }
    let (state, scope) = match saying.decision {
        Decision::AllowOnce => (ApprovalState::Allowed, Some(ApprovalScope::Once)),
        Decision::AllowSession => (ApprovalState::Allowed, Some(ApprovalScope::Session)),
        Decision::Deny | Decision::Cancel => (ApprovalState::Denied, None),
    };
    match approval.state {
        ApprovalState::Pending if life == Life::Going => {}
        ApprovalState::Pending => return Err(Refused::Completed),
        ApprovalState::Expired if life == Life::Ended => return Err(Refused::Completed),
        ApprovalState::Expired => return Err(Refused::Expired),
        ApprovalState::Allowed | ApprovalState::Consumed | ApprovalState::Denied => {
            let became = if approval.state == ApprovalState::Denied { ApprovalState::Denied } else { ApprovalState::Allowed };
            let same = (became, approval.scope) == (state, scope) && approval.decided_by.as_deref() == Some(saying.by);
            return if same { Ok(approval.clone()) } else { Err(Refused::already_decided(approval)) };
        }
    }
    change(status, now, |approvals, totals| {
        for approval in approvals.iter_mut().filter(|approval| approval.id == id) {
            approval.state = state;
            approval.scope = scope;
            approval.decided_by = Some(saying.by.to_owned());
            approval.decided_at = Some(time(now));
            approval.reason = saying.reason.map(str::to_owned);
        }
        match state {
            ApprovalState::Allowed => totals.allowed += 1,
            _ => totals.denied += 1,
        }
    });
    find(status, id).cloned()
}

/// A pending record whose very action was allowed for the session gets what was decided then.
pub(super) fn grant(status: &mut AgentRunStatus, id: i64, now: i64) {
    let Some(asked) = status.approvals.iter().find(|approval| approval.id == id && approval.state == ApprovalState::Pending) else {
        return;
    };
    let Some(decided_by) = standing_grant(status, &asked.digest).and_then(|earlier| earlier.decided_by.clone()) else { return };
    change(status, now, |approvals, totals| {
        for approval in approvals.iter_mut().filter(|approval| approval.id == id) {
            approval.state = ApprovalState::Allowed;
            approval.scope = Some(ApprovalScope::Session);
            approval.decided_by = Some(decided_by.clone());
            approval.decided_at = Some(time(now));
        }
        totals.allowed += 1;
    });
}

/// An earlier decision that holds for every use of the same action.
pub(super) fn standing_grant<'a>(status: &'a AgentRunStatus, digest: &str) -> Option<&'a Approval> {
    status.approvals.iter().find(|approval| {
        let given = matches!(approval.state, ApprovalState::Allowed | ApprovalState::Consumed);
        given && approval.scope == Some(ApprovalScope::Session) && approval.digest == digest
    })
}

/// Use an allowance, once, for the action that it was given for.
pub(super) fn consume(status: &mut AgentRunStatus, id: i64, digest: &str, execution_id: &str, now: i64) -> Result<Approval, Refused> {
    expire(status, now, Life::Going);
    let approval = find(status, id)?;
    if approval.digest != digest {
        return Err(Refused::AnotherDigest);
    }
    match approval.state {
        ApprovalState::Allowed => {}
        ApprovalState::Consumed if approval.execution_id.as_deref() == Some(execution_id) => return Ok(approval.clone()),
        ApprovalState::Consumed => return Err(Refused::AlreadyConsumed),
        ApprovalState::Pending => return Err(Refused::StillPending),
        ApprovalState::Denied => return Err(Refused::Denied),
        ApprovalState::Expired => return Err(Refused::Expired),
    }
    change(status, now, |approvals, _| {
        for approval in approvals.iter_mut().filter(|approval| approval.id == id) {
            approval.state = ApprovalState::Consumed;
            approval.execution_id = Some(execution_id.to_owned());
        }
    });
    find(status, id).cloned()
}

/// What has lain past its time expires, and all that is open once the run has ended.
pub(super) fn expire(status: &mut AgentRunStatus, now: i64, life: Life) {
    if !is_overdue(status, now, life) {
        return;
    }
    change(status, now, |approvals, totals| {
        for approval in approvals.iter_mut().filter(|approval| overdue(approval, now, life)) {
            totals.expired += i64::from(approval.state == ApprovalState::Pending);
            approval.state = ApprovalState::Expired;
        }
    });
}

/// Whether `expire` would change something.
pub(super) fn is_overdue(status: &AgentRunStatus, now: i64, life: Life) -> bool {
    status.approvals.iter().any(|approval| overdue(approval, now, life))
}

fn overdue(approval: &Approval, now: i64, life: Life) -> bool {
    is_open(approval) && (life == Life::Ended || now >= approval.expires_at.0.as_second())
}

fn is_open(approval: &Approval) -> bool {
    matches!(approval.state, ApprovalState::Pending | ApprovalState::Allowed)
}

pub(super) fn find(status: &AgentRunStatus, id: i64) -> Result<&Approval, Refused> {
    status.approvals.iter().find(|approval| approval.id == id).ok_or(Refused::Unknown(id))
}

/// Change the list and keep the books that go with it: totals, the column, and since when the run waits.
fn change(status: &mut AgentRunStatus, now: i64, work: impl FnOnce(&mut Vec<Approval>, &mut ApprovalTotals)) {
    let waited = status.waited(now);
    let mut totals = status.approval_totals.unwrap_or_default();
    work(&mut status.approvals, &mut totals);
    status.approval_totals = Some(totals);
    let pending = status.approvals.iter().filter(|approval| approval.state == ApprovalState::Pending).count();
    status.pending_approvals = Some(i64::try_from(pending).unwrap_or(i64::MAX));
    if pending == 0 {
        if status.awaiting_since.take().is_some() {
            status.waited_seconds = Some(waited);
        }
    } else if status.awaiting_since.is_none() {
        status.awaiting_since = Some(time(now));
    }
}

/// Whole seconds, as the API server keeps them.
pub(super) fn time(seconds: i64) -> Time {
    Time(jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;
    const TIMEOUT: i64 = 60;

    fn question(digest: &str) -> Question {
        Question { digest: digest.into(), kind: "run_command".into(), summary: digest.into(), timeout_seconds: TIMEOUT }
    }

    fn saying(decision: Decision, by: &str) -> Saying<'_> {
        Saying { decision, digest: None, reason: Some("why"), by }
    }

    fn asked(digests: &[&str]) -> AgentRunStatus {
        let mut status = AgentRunStatus::default();
        for digest in digests {
            ask(&mut status, &question(digest), &BTreeSet::new(), NOW).expect("asked");
        }
        status
    }

    fn totals(asked: i64, allowed: i64, denied: i64, expired: i64) -> Option<ApprovalTotals> {
        Some(ApprovalTotals { asked, allowed, denied, expired })
    }

    #[test]
    fn the_same_action_is_asked_once_while_it_is_open() {
        let mut status = asked(&["a", "b", "a"]);
        assert_eq!((status.approvals.len(), status.next_approval_id, status.pending_approvals), (2, Some(3), Some(2)));
        decide(&mut status, 1, &saying(Decision::AllowOnce, "alice"), Life::Going, NOW).expect("decided");
        assert_eq!(ask(&mut status, &question("a"), &BTreeSet::new(), NOW), Ok(1), "allowed is open");
        consume(&mut status, 1, "a", "x", NOW).expect("consumed");
        assert_eq!(ask(&mut status, &question("a"), &BTreeSet::new(), NOW), Ok(3), "consumed is not");
        assert_eq!(ask(&mut status, &question("b"), &BTreeSet::new(), NOW + TIMEOUT), Ok(4), "nor is one past its time");
        assert_eq!((status.approvals[1].state, status.approval_totals), (ApprovalState::Expired, totals(4, 1, 0, 2)));
    }

    #[test]
    fn an_approval_is_decided_once() {
        use ApprovalState::{Allowed, Denied, Expired};
        use Decision::{AllowOnce, AllowSession, Cancel, Deny};
        type Row = (&'static str, &'static [(Decision, &'static str)], Life, i64, Result<ApprovalState, &'static str>);
        let rows: &[Row] = &[
            ("allow", &[(AllowOnce, "alice")], Life::Going, 0, Ok(Allowed)),
            ("deny", &[(Deny, "alice")], Life::Going, 0, Ok(Denied)),
            ("the same again", &[(AllowOnce, "alice"), (AllowOnce, "alice")], Life::Going, 0, Ok(Allowed)),
            ("cancel after the same denial", &[(Deny, "alice"), (Cancel, "alice")], Life::Going, 0, Ok(Denied)),
            ("a denial while the run ends", &[(Deny, "alice"), (Cancel, "alice")], Life::Ending, 0, Err("already_completed")),
            ("another's same", &[(AllowOnce, "alice"), (AllowOnce, "bob")], Life::Going, 0, Err("already_decided")),
            ("another scope", &[(AllowOnce, "alice"), (AllowSession, "alice")], Life::Going, 0, Err("already_decided")),
            ("the contrary", &[(AllowOnce, "alice"), (Deny, "alice")], Life::Going, 0, Err("already_decided")),
            ("allowed after a denial", &[(Deny, "alice"), (AllowOnce, "alice")], Life::Going, 0, Err("already_decided")),
            ("a moment before its time", &[(AllowOnce, "alice")], Life::Going, TIMEOUT - 1, Ok(Allowed)),
            ("at its time", &[(AllowOnce, "alice")], Life::Going, TIMEOUT, Err("approval_expired")),
            ("the run is asked to end", &[(AllowOnce, "alice")], Life::Ending, 0, Err("already_completed")),
            ("the run has ended", &[(AllowOnce, "alice")], Life::Ended, 0, Err("already_completed")),
        ];
        for (name, sayings, life, after, expected) in rows {
            let mut status = asked(&["a"]);
            let mut last = Ok(ApprovalState::Pending);
            for (decision, by) in *sayings {
                last = decide(&mut status, 1, &saying(*decision, by), *life, NOW + after).map(|a| a.state).map_err(|r| r.code());
            }
            assert_eq!(last, *expected, "{name}");
            let written = &status.approvals[0];
            match expected {
                Ok(state) => assert_eq!((written.state, written.decided_by.as_deref()), (*state, Some("alice")), "{name}"),
                Err("approval_expired") => assert_eq!((written.state, &written.decided_by), (Expired, &None), "{name}"),
                Err(_) => assert_ne!(written.decided_by.as_deref(), Some("bob"), "{name}"),
            }
            let sum = status.approval_totals.map(|t| t.allowed + t.denied + t.expired);
            assert!(sum <= Some(1), "{name}: counted once: {:?}", status.approval_totals);
        }
        for life in [Life::Ending, Life::Ended] {
            let mut status = asked(&["a"]);
            decide(&mut status, 1, &saying(Deny, "alice"), Life::Going, NOW).expect("decided");
            let again = decide(&mut status, 1, &saying(Cancel, "alice"), life, NOW + 1).expect("the same again");
            assert_eq!(again.decided_at, Some(time(NOW)));
        }
        let mut status = asked(&["a"]);
        let other = Saying { digest: Some("b"), ..saying(AllowOnce, "alice") };
        assert_eq!(decide(&mut status, 1, &other, Life::Going, NOW), Err(Refused::AnotherDigest));
        assert_eq!(decide(&mut status, 2, &saying(AllowOnce, "alice"), Life::Going, NOW), Err(Refused::Unknown(2)));
        assert_eq!(status, asked(&["a"]), "neither changed anything");
        let refused = decide(&mut status, 1, &saying(Deny, "alice"), Life::Going, NOW).and_then(|_| {
            decide(&mut status, 1, &saying(AllowOnce, "bob"), Life::Going, NOW) //
        });
        let message = refused.expect_err("decided").to_string();
        assert!(message.contains("denied") && message.contains("alice") && message.contains("2027-"), "{message}");
    }

    #[test]
    fn an_allowance_is_used_once_for_what_it_was_given() {
        let allowed = || {
            let mut status = asked(&["a"]);
            decide(&mut status, 1, &saying(Decision::AllowOnce, "alice"), Life::Going, NOW).expect("decided");
            status
        };
        let mut status = allowed();
        assert_eq!(consume(&mut status, 1, "b", "x", NOW), Err(Refused::AnotherDigest));
        assert_eq!(status, allowed(), "nothing was consumed");
        assert_eq!(consume(&mut status, 1, "a", "x", NOW).expect("consumed").execution_id.as_deref(), Some("x"));
        assert_eq!(consume(&mut status, 1, "a", "x", NOW + TIMEOUT).expect("again").state, ApprovalState::Consumed);
        assert_eq!(consume(&mut status, 1, "a", "y", NOW), Err(Refused::AlreadyConsumed));
        assert_eq!(consume(&mut status, 1, "b", "x", NOW), Err(Refused::AnotherDigest));

        let mut late = allowed();
        assert_eq!(consume(&mut late, 1, "a", "x", NOW + TIMEOUT), Err(Refused::Expired));
        assert_eq!((late.approvals[0].state, late.approval_totals), (ApprovalState::Expired, totals(1, 1, 0, 0)));
        assert_eq!(consume(&mut asked(&["a"]), 1, "a", "x", NOW), Err(Refused::StillPending));
        let mut denied = asked(&["a"]);
        decide(&mut denied, 1, &saying(Decision::Deny, "alice"), Life::Going, NOW).expect("decided");
        assert_eq!(consume(&mut denied, 1, "a", "x", NOW), Err(Refused::Denied));
    }

    #[test]
    fn a_session_decision_holds_for_the_very_same_action() {
        let mut status = asked(&["a", "b"]);
        grant(&mut status, 2, NOW);
        assert_eq!(status, asked(&["a", "b"]), "there is nothing to grant");
        decide(&mut status, 1, &saying(Decision::AllowSession, "alice"), Life::Going, NOW).expect("decided");
        consume(&mut status, 1, "a", "x", NOW).expect("consumed");
        for (digest, id, granted) in [("a", 3, true), ("c", 4, false)] {
            assert_eq!(ask(&mut status, &question(digest), &BTreeSet::new(), NOW + 1), Ok(id));
            assert_eq!(find(&status, id).expect("there").state, ApprovalState::Pending, "born pending");
            grant(&mut status, id, NOW + 1);
            let approval = find(&status, id).expect("there");
            let seen = (approval.state == ApprovalState::Allowed, approval.decided_by.as_deref(), approval.scope);
            assert_eq!(seen, if granted { (true, Some("alice"), Some(ApprovalScope::Session)) } else { (false, None, None) }, "{digest}");
        }
        assert_eq!(consume(&mut status, 3, "a", "y", NOW + 2).expect("its own use").state, ApprovalState::Consumed);
    }

    #[test]
    fn the_list_is_bounded_and_only_what_is_recorded_leaves_it() {
        let mut status = AgentRunStatus::default();
        let recorded = |status: &AgentRunStatus| status.approvals.iter().map(|approval| approval.id).collect::<BTreeSet<_>>();
        for number in 0..16 {
            ask(&mut status, &question(&format!("open{number}")), &BTreeSet::new(), NOW).expect("asked");
        }
        assert_eq!(ask(&mut status, &question("more"), &BTreeSet::new(), NOW), Err(Refused::TooManyOpen(16)));
        assert_eq!(ask(&mut status, &question("open3"), &BTreeSet::new(), NOW), Ok(4), "what stands may be asked for again");
        for id in 1..=16 {
            let decision = if id == 1 { Decision::AllowSession } else { Decision::Deny };
            decide(&mut status, id, &saying(decision, "alice"), Life::Going, NOW).expect("decided");
        }
        consume(&mut status, 1, "open0", "x", NOW).expect("consumed");
        for number in 0..16 {
            ask(&mut status, &question(&format!("next{number}")), &BTreeSet::new(), NOW).expect("asked");
        }
        decide(&mut status, 20, &saying(Decision::Deny, "alice"), Life::Going, NOW).expect("decided");
        assert_eq!(ask(&mut status, &question("more"), &BTreeSet::new(), NOW), Err(Refused::TooManyListed(32)));
        assert_eq!(ask(&mut status, &question("more"), &BTreeSet::from([17]), NOW), Err(Refused::TooManyListed(32)), "17 is open");
        let all = recorded(&status);
        assert_eq!(ask(&mut status, &question("more"), &all, NOW), Ok(33));
        let left: Vec<i64> = status.approvals.iter().map(|approval| approval.id).collect();
        assert!(left.contains(&1) && !left.contains(&2) && left.len() == 32, "the grant stays, the oldest of the rest goes: {left:?}");
        status.approval_totals = totals(MAX_ASKED, 0, 0, 0);
        decide(&mut status, 33, &saying(Decision::Deny, "alice"), Life::Going, NOW).expect("decided");
        assert_eq!(ask(&mut status, &question("yet more"), &all, NOW), Err(Refused::AskedTooOften(MAX_ASKED)));
    }

    #[test]
    fn waiting_is_counted_while_anything_is_pending() {
        let mut status = asked(&["a", "b"]);
        assert_eq!((status.awaiting_since.clone(), status.waited_seconds), (Some(time(NOW)), None));
        decide(&mut status, 1, &saying(Decision::Deny, "alice"), Life::Going, NOW + 10).expect("decided");
        assert_eq!((status.awaiting_since.clone(), status.waited_seconds, status.pending_approvals), (Some(time(NOW)), None, Some(1)));
        decide(&mut status, 2, &saying(Decision::AllowOnce, "alice"), Life::Going, NOW + 25).expect("decided");
        assert_eq!((status.awaiting_since.clone(), status.waited_seconds, status.pending_approvals), (None, Some(25), Some(0)));
        ask(&mut status, &question("c"), &BTreeSet::new(), NOW + 100).expect("asked");
        // Found out a day late: it had waited for its own time only.
        expire(&mut status, NOW + 86_400, Life::Going);
        assert_eq!((status.awaiting_since.clone(), status.waited_seconds), (None, Some(25 + TIMEOUT)));
        ask(&mut status, &question("d"), &BTreeSet::new(), NOW + 90_000).expect("asked");
        expire(&mut status, NOW + 90_005, Life::Ended);
        assert_eq!((status.waited_seconds, status.pending_approvals), (Some(25 + TIMEOUT + 5), Some(0)));
        assert_eq!(status.approval_totals, totals(4, 1, 1, 2), "b was allowed and lapsed, which nobody was asked twice");
        let before = status.clone();
        expire(&mut status, NOW + 90_010, Life::Ended);
        assert_eq!(status, before);
    }
}
