//! What a container asks the scheduler for: a share of its limit, since an agent mostly waits for its model, but enough that
//! a policy's sizes mean something. Pure arithmetic on Kubernetes quantities.

/// An eighth of a limit in bytes, at least `floor` bytes, never above the limit. A limit that does not parse gives `floor`.
pub fn of_bytes(limit: &str, floor: i128) -> String {
    match thousandths(limit) {
        Some(limit) => (limit / 1000 / 8).max(floor).min(limit / 1000).to_string(),
        None => floor.to_string(),
    }
}

/// A twentieth of a CPU limit, at least `floor` thousandths, never above the limit.
pub fn of_cpu(limit: &str, floor: i128) -> String {
    let share = match thousandths(limit) {
        Some(limit) => (limit / 20).max(floor).min(limit),
        None => floor,
    };
    format!("{share}m")
}

/// A quantity in thousandths, rounded down.
fn thousandths(text: &str) -> Option<i128> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if number.len() > 18 || (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let binary = |power: u32| Some((1i128 << (10 * power), 1));
    let (factor, divisor) = match suffix {
        "" => Some((1, 1)),
        "n" => Some((1, 1_000_000_000)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1000)),
        "k" => Some((1000, 1)),
        "M" => Some((1_000_000, 1)),
        "G" => Some((1_000_000_000, 1)),
        "T" => Some((1_000_000_000_000, 1)),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        _ => None,
    }?;
    let scale = 10i128.pow(u32::try_from(fraction.len()).ok()?);
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    Some(digits * factor * 1000 / divisor / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        for (limit, share) in
            [("1", "50m"), ("500m", "25m"), ("100m", "10m"), ("5m", "5m"), ("200", "10000m"), ("0.5", "25m"), ("x", "10m")]
        {
            assert_eq!(of_cpu(limit, 10), share, "{limit}");
        }
        let mi = 1024 * 1024;
        for (limit, share) in [
            ("1Gi", 128 * mi),
            ("64Mi", 32 * mi),
            ("16Mi", 16 * mi),
            ("1.5Gi", 192 * mi),
            ("1G", 125_000_000),
            ("4Ti", 4 * mi * mi / 8),
            ("", 32 * mi),
            ("1..5Gi", 32 * mi),
            ("1e3", 32 * mi),
        ] {
            assert_eq!(of_bytes(limit, 32 * mi), share.to_string(), "{limit}");
        }
    }
}
