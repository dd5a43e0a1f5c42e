//! Decimal money and durations: strings for people, integers inside.

/// Why a string is not a quantity.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum QuantityError {
    #[error("{0:?} is not a decimal such as \"0.50\" (at most 9 digits before and 6 after the point)")]
    Decimal(String),
    #[error("{0:?} is not a duration such as \"180s\", \"30m\" or \"1h30m\"")]
    Duration(String),
}

/// `"0.50"` → 500,000 millionths.
pub fn micros(text: &str) -> Result<i64, QuantityError> {
    let bad = || QuantityError::Decimal(text.chars().take(32).collect());
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str, most: usize| !part.is_empty() && part.len() <= most && part.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole, 9) || !digits(fraction, 6) {
        return Err(bad());
    }
    let whole: i64 = whole.parse().map_err(|_| bad())?;
    let fraction: i64 = format!("{fraction:0<6}").parse().map_err(|_| bad())?;
    Ok(whole * 1_000_000 + fraction)
}

/// 500,000 millionths → `"0.50"`; at least two and at most six decimals.
pub fn micros_text(micros: i64) -> String {
    let fraction = format!("{:06}", micros.unsigned_abs() % 1_000_000);
    let kept = fraction.trim_end_matches('0').len().max(2);
    format!("{}{}.{}", if micros < 0 { "-" } else { "" }, micros.unsigned_abs() / 1_000_000, &fraction[..kept])
}

/// `"1h30m"` → 5,400 seconds. Units h, m, s in this order, each at most once; at most 7 digits each.
pub fn seconds(text: &str) -> Result<i64, QuantityError> {
    let bad = || QuantityError::Duration(text.chars().take(32).collect());
    let mut rest = text;
    let mut total: i64 = 0;
    for (unit, factor) in [('h', 3600), ('m', 60), ('s', 1)] {
        if let Some((number, after)) = rest.split_once(unit) {
            if number.is_empty() || number.len() > 7 || !number.bytes().all(|b| b.is_ascii_digit()) {
                return Err(bad());
            }
            total += number.parse::<i64>().map_err(|_| bad())? * factor;
            rest = after;
        }
    }
    if text.is_empty() || !rest.is_empty() { Err(bad()) } else { Ok(total) }
}

/// `"64Mi"` → 67,108,864 bytes. A whole number with one of Kubernetes' suffixes k, M, G, Ki, Mi, Gi, or none.
pub fn bytes(text: &str) -> Option<i64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let factor = match &text[digits..] {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    text[..digits].parse::<i64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_bytes() {
        for (text, expected) in [("64Mi", Some(64 << 20)), ("1k", Some(1000)), ("7", Some(7)), ("1Gi", Some(1 << 30))] {
            assert_eq!(bytes(text), expected, "{text}");
        }
        for text in ["", "Mi", "1.5Mi", "-1", "1e3", "1 Mi", "9999999999999999999", "9999999999Gi"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    #[test]
    fn money_is_exact() {
        for (text, expected) in [("0.50", 500_000), ("5", 5_000_000), ("0.000001", 1), ("999999999.999999", 999_999_999_999_999)] {
            assert_eq!(micros(text), Ok(expected), "{text}");
        }
        for text in ["", ".", "1.", ".5", "-1", "1e3", "1.0000000", "1234567890", "0.5 ", "٣"] {
            assert!(micros(text).is_err(), "{text}");
        }
        for (value, text) in [(500_000, "0.50"), (1, "0.000001"), (12_300_000, "12.30"), (0, "0.00")] {
            assert_eq!(micros_text(value), text);
        }
    }

    #[test]
    fn durations_have_one_form() {
        for (text, expected) in [("180s", 180), ("30m", 1800), ("1h30m", 5400), ("1h1s", 3601), ("0s", 0)] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for text in ["", "5", "s", "1m1h", "1.5h", "-1s", "1d", "12345678s", "1s1s", "1s "] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
