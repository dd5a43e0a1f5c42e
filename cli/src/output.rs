//! Standard output and standard error: colours where they are wanted, objects in the form asked for.

use std::io::{IsTerminal, Write};

use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use crate::arguments::{ColorChoice, Form};
use crate::failure::Failure;
use crate::{hint, visible};

/// Where results go. Standard error takes what is said beside them.
pub struct Output {
    color: bool,
    /// Whether standard output is a terminal that can be redrawn.
    pub terminal: bool,
}

/// SGR codes that we use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Color {
    Red,
    Green,
    Yellow,
    Cyan,
    Dim,
    Bold,
}

impl Output {
    pub fn new(choice: ColorChoice) -> Self {
        let terminal = std::io::stdout().is_terminal() && std::env::var("TERM").is_ok_and(|term| !term.is_empty() && term != "dumb");
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let color = match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => terminal && wanted,
        };
        Output { color, terminal }
    }

    /// The text in a colour, if colours are wanted. The text must be visible already.
    pub fn paint(&self, color: Color, text: &str) -> String {
        if !self.color || text.is_empty() {
            return text.to_owned();
        }
        let code = match color {
            Color::Red => "31",
            Color::Green => "32",
            Color::Yellow => "33",
            Color::Cyan => "36",
            Color::Dim => "2",
            Color::Bold => "1",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }

    /// Text and a line end; text that is ready for a terminal.
    pub fn line(&self, text: &str) -> Result<(), Failure> {
        self.raw(format!("{text}\n").as_bytes())
    }

    /// Bytes as they are.
    pub fn raw(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()?;
        Ok(())
    }

    /// An object in the form asked for.
    pub fn object(&self, object: &Value, form: Form) -> Result<(), Failure> {
        match form {
            Form::Name => self.line(&visible::line(&format!(
                "agentrun.{}/{}",
                agentrun_crds::GROUP,
                ["name", "generateName"].iter().find_map(|key| object["metadata"][key].as_str()).unwrap_or_default()
            ))),
            Form::Json => self.json(object),
            Form::Yaml => {
                let text = serde_yaml::to_string(object).unwrap_or_default();
                // A pipe gets the value as it is.
                self.raw(if self.terminal { visible::block(&text) } else { text }.as_bytes())
            }
        }
    }

    /// Indented JSON.
    pub fn json(&self, value: &Value) -> Result<(), Failure> {
        self.line(&visible::json(&format!("{value:#}")))
    }

    /// A warning or a remark, on standard error.
    pub fn remark(&self, text: &str) {
        // Nobody to tell if this fails.
        let _ = writeln!(std::io::stderr(), "{}", visible::block(&hint::complete(text)));
    }
}

/// Rows beneath headings, in columns. Every cell is a single line that is made visible here.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(headings: &[&str]) -> Self {
        Table { rows: vec![headings.iter().map(|heading| (*heading).to_owned()).collect()] }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| visible::line(cell)).collect());
    }

    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// Lines, each column as wide as its widest cell.
    pub fn lines(&self) -> Vec<String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let widths: Vec<usize> = (0..columns)
            .map(|column| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max().unwrap_or(0))
            .collect();
        self.rows
            .iter()
            .map(|row| {
                let mut line = String::new();
                for (cell, width) in row.iter().zip(&widths) {
                    line.push_str(cell);
                    line.push_str(&" ".repeat(width - cell.width() + 3));
                }
                line.trim_end().to_owned()
            })
            .collect()
    }
}

/// `41s`, `3m12s`, `5h7m`, `3d`: as kubectl shows ages.
pub fn age(seconds: i64) -> String {
    let seconds = seconds.max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => format!("{}m{}s", seconds / 60, seconds % 60),
        600..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_by_what_is_seen() {
        let mut table = Table::new(&["NAME", "X"]);
        table.row(vec!["日本".into(), "1".into()]);
        table.row(vec!["a\u{1b}b\n".into(), "2".into()]);
        table.row(vec!["c".into(), String::new()]);
        assert_eq!(table.lines(), ["NAME         X", "日本         1", "a\\u{1b}b\\n   2", "c"]);
    }

    #[test]
    fn ages_are_short() {
        for (seconds, text) in [(-1, "0s"), (41, "41s"), (192, "3m12s"), (660, "11m"), (18_420, "5h7m"), (259_200, "3d")] {
            assert_eq!(age(seconds), text);
        }
    }
}
