//! Rows of measurements: the table for people and the file for programs.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// One measurement beside what it is compared to.
#[derive(Serialize, Clone, Debug)]
pub struct Row {
    pub name: String,
    pub value: f64,
    pub unit: String,
    /// The same measured on the reference, in the same unit.
    pub reference: Option<f64>,
    /// value / reference
    pub ratio: Option<f64>,
    /// Largest ratio allowed.
    pub limit: Option<f64>,
    /// Largest ratio that we want to reach; beyond it nothing fails.
    pub target: Option<f64>,
}

impl Row {
    /// A measurement and its reference.
    pub fn compared(name: &str, unit: &str, value: f64, reference: f64, limit: Option<f64>) -> Row {
        let rounded = |number: f64| (number * 1000.0).round() / 1000.0;
        Row {
            name: name.into(),
            value: rounded(value),
            unit: unit.into(),
            reference: Some(rounded(reference)),
            ratio: Some(rounded(value / reference)),
            limit,
            target: None,
        }
    }

    /// The same with a target.
    pub fn target(self, target: Option<f64>) -> Row {
        Row { target, ..self }
    }

    /// Whether the ratio is beyond its limit.
    pub fn is_over(&self) -> bool {
        matches!((self.ratio, self.limit), (Some(ratio), Some(limit)) if ratio > limit)
    }
}

/// The middle of the values, or the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// Print the table.
pub fn print(rows: &[Row]) {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    println!("{:<76} {:>10} {:<5} {:>10} {:>7} {:>6} {:>6}", "", "value", "unit", "reference", "ratio", "limit", "target");
    for row in rows {
        let missed = matches!((row.ratio, row.target), (Some(ratio), Some(target)) if ratio > target);
        let mark = if row.is_over() {
            "  OVER"
        } else if missed {
            "  not reached"
        } else {
            ""
        };
        println!(
            "{:<76} {:>10} {:<5} {:>10} {:>7} {:>6} {:>6}{mark}",
            row.name,
            number(Some(row.value)),
            row.unit,
            number(row.reference),
            number(row.ratio),
            number(row.limit),
            number(row.target)
        );
    }
}

/// Write `bench/results.json`.
pub fn write(rows: &[Row]) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("results.json");
    std::fs::write(&path, serde_json::to_string_pretty(rows)? + "\n").with_context(|| format!("writing {}", path.display()))?;
    println!("written to bench/results.json");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        for (values, expected) in [(vec![3.0, 1.0, 2.0], 2.0), (vec![4.0, 1.0, 2.0, 3.0], 2.5), (vec![7.0], 7.0)] {
            assert_eq!(median(values.clone()), expected, "{values:?}");
        }
    }

    #[test]
    fn a_row_is_over_only_beyond_its_limit() {
        for (value, limit, over) in [(1.5, Some(1.5), false), (1.51, Some(1.5), true), (9.0, None, false)] {
            assert_eq!(Row::compared("x", "s", value, 1.0, limit).is_over(), over);
        }
    }
}
