//! When to make a new authority or certificate. Pure: what is there, and `now`, give what to do.
//!
//! A new authority is announced before it signs: sandboxes that started earlier trust only what their ticket carried, so the
//! old one goes on signing until no such sandbox can live any more.

use super::certificate::Facts;

/// Life of an authority, in seconds.
pub const AUTHORITY_LIFE: i64 = 365 * 86_400;
/// Life of a serving certificate, in seconds.
pub const SERVING_LIFE: i64 = 90 * 86_400;
/// How long a new authority is known before it signs: twice the longest run.
pub const OVERLAP: i64 = 2 * 86_400;

/// What the Secrets hold; unusable entries are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub current: Option<Facts>,
    pub previous: Option<Facts>,
    pub serving: Option<Facts>,
}

/// Which authority signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signer {
    Current,
    Previous,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Make an authority; the one that is current becomes the previous one.
    pub new_authority: bool,
    /// The authority that signs after that.
    pub signer: Signer,
    /// Make a serving certificate.
    pub new_serving: bool,
    /// Whether the previous authority is still to be trusted.
    pub trust_previous: bool,
}

/// Decide.
pub fn steps(found: &Found, dns_names: &[String], now: i64) -> Steps {
    let usable = |facts: &Option<Facts>| facts.clone().filter(|facts| facts.is_ca && facts.valid(now));
    let current = usable(&found.current);
    let new_authority = !current.as_ref().is_some_and(|current| current.fresh(now));
    // After the step: a new authority has the age zero and the one before it is `current`.
    let (age, previous) = match (&current, new_authority) {
        (Some(current), false) => (now - current.not_before, usable(&found.previous)),
        (current, _) => (0, current.clone()),
    };
    let signer = if previous.is_some() && age < OVERLAP { Signer::Previous } else { Signer::Current };
    let signer_name = match (signer, new_authority) {
        (Signer::Current, true) => None,
        (Signer::Current, false) => current.as_ref().map(|facts| facts.subject.clone()),
        (Signer::Previous, _) => previous.as_ref().map(|facts| facts.subject.clone()),
    };
    let serves = found.serving.as_ref().is_some_and(|serving| {
        serving.fresh(now) && Some(&serving.issuer) == signer_name.as_ref() && dns_names.iter().all(|name| serving.dns_names.contains(name))
    });
    Steps { new_authority, signer, new_serving: !serves, trust_previous: previous.is_some() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    fn ca(name: &str, from_day: i64) -> Option<Facts> {
        facts(name, name, from_day, 365, true)
    }

    fn leaf(issuer: &str, from_day: i64) -> Option<Facts> {
        facts("leaf", issuer, from_day, 90, false)
    }

    fn facts(subject: &str, issuer: &str, from_day: i64, days: i64, is_ca: bool) -> Option<Facts> {
        Some(Facts {
            not_before: from_day * DAY,
            not_after: (from_day + days) * DAY,
            subject: subject.into(),
            issuer: issuer.into(),
            is_ca,
            dns_names: vec!["gw".into()],
            key: [0; 32],
        })
    }

    #[test]
    fn the_table() {
        let found = |current, previous, serving| Found { current, previous, serving };
        let names = ["gw".to_owned()];
        let more = ["gw".to_owned(), "gw.svc".to_owned()];
        // found, names, day -> new authority, signer, new certificate, previous trusted
        type Row<'a> = (&'a str, Found, &'a [String], i64, (bool, Signer, bool, bool));
        let rows: Vec<Row<'_>> = vec![
            ("nothing there", found(None, None, None), &names, 0, (true, Signer::Current, true, false)),
            ("all fresh", found(ca("a", 0), None, leaf("a", 0)), &names, 10, (false, Signer::Current, false, false)),
            ("certificate in its last third", found(ca("a", 0), None, leaf("a", 0)), &names, 61, (false, Signer::Current, true, false)),
            ("certificate expired", found(ca("a", 0), None, leaf("a", 0)), &names, 91, (false, Signer::Current, true, false)),
            ("a name is missing", found(ca("a", 0), None, leaf("a", 0)), &more, 10, (false, Signer::Current, true, false)),
            ("certificate of another authority", found(ca("a", 0), None, leaf("x", 0)), &names, 10, (false, Signer::Current, true, false)),
            ("authority in its last third", found(ca("a", 0), None, leaf("a", 200)), &names, 250, (true, Signer::Previous, false, true)),
            ("the new one is young", found(ca("b", 250), ca("a", 0), leaf("a", 200)), &names, 251, (false, Signer::Previous, false, true)),
            (
                "the new one has come of age",
                found(ca("b", 250), ca("a", 0), leaf("a", 200)),
                &names,
                252,
                (false, Signer::Current, true, true),
            ),
            ("after the change", found(ca("b", 250), ca("a", 0), leaf("b", 252)), &names, 260, (false, Signer::Current, false, true)),
            (
                "the old one has expired",
                found(ca("b", 250), ca("a", 0), leaf("b", 300)),
                &names,
                366,
                (false, Signer::Current, true, false),
            ),
            ("authority expired unseen", found(ca("a", 0), None, leaf("a", 0)), &names, 400, (true, Signer::Current, true, false)),
            ("a leaf in the authority's place", found(leaf("a", 0), None, leaf("a", 0)), &names, 10, (true, Signer::Current, true, false)),
        ];
        for (row, found, names, day, expected) in rows {
            let steps = steps(&found, names, day * DAY);
            assert_eq!((steps.new_authority, steps.signer, steps.new_serving, steps.trust_previous), expected, "{row}");
        }
    }

    #[test]
    fn whoever_started_before_a_change_of_authority_is_served_until_it_ends() {
        // Day by day for three years: a client keeps the bundle of its first day for a day (the longest run).
        let names = ["gw".to_owned()];
        let mut found = Found::default();
        let mut bundles: Vec<(i64, Vec<String>)> = Vec::new();
        let mut made = 0;
        for hour in 0..3 * 365 * 24 {
            let now = hour * 3600;
            let steps = steps(&found, &names, now);
            let new = |name: &str, issuer: &str, life: i64, is_ca: bool| {
                let facts = facts(name, issuer, 0, 1, is_ca)?;
                Some(Facts { not_before: now, not_after: now + life, ..facts })
            };
            if steps.new_authority {
                made += 1;
                let name = format!("ca-{made}");
                found.previous = found.current.take();
                found.current = new(&name, &name, AUTHORITY_LIFE, true);
            }
            let signer = match steps.signer {
                Signer::Current => found.current.clone(),
                Signer::Previous => found.previous.clone(),
            };
            if steps.new_serving {
                found.serving = new("leaf", &signer.unwrap().subject, SERVING_LIFE, false);
            }
            let mut bundle = vec![found.current.clone().unwrap().subject];
            bundle.extend(found.previous.clone().filter(|_| steps.trust_previous).map(|facts| facts.subject));
            bundles.push((now, bundle));
            bundles.retain(|(since, _)| *since >= now - DAY);
            let serving = found.serving.clone().unwrap();
            assert!(serving.valid(now));
            for (since, bundle) in &bundles {
                assert!(bundle.contains(&serving.issuer), "at hour {hour} a client of second {since} is shut out");
            }
        }
        assert!(made >= 4, "{made} authorities in three years");
    }
}
