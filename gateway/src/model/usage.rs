//! What a provider says it took. Anything odd counts as unknown, and unknown is charged at the reservation.

use serde::Deserialize;

/// Tokens of one call as billed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub input_tokens: i64,
    pub output_tokens: i64,
}

/// The wire form; a doubled member or a wrong type fails the whole parse.
#[derive(Deserialize)]
pub struct WireUsage {
    prompt_tokens: i64,
    #[serde(default)]
    completion_tokens: i64,
    #[serde(default)]
    total_tokens: Option<i64>,
}

impl WireUsage {
    /// `None` if a number cannot be true. Output that shows in the total only (hidden reasoning) counts as output.
    pub fn checked(&self) -> Option<Usage> {
        if self.prompt_tokens < 0 || self.completion_tokens < 0 {
            return None;
        }
        let hidden = self.total_tokens.unwrap_or(0).saturating_sub(self.prompt_tokens);
        Some(Usage { input_tokens: self.prompt_tokens, output_tokens: self.completion_tokens.max(hidden) })
    }
}

impl Usage {
    /// Reports of one stream may grow.
    pub fn max(self, other: Option<Usage>) -> Usage {
        let other = other.unwrap_or(self);
        Usage { input_tokens: self.input_tokens.max(other.input_tokens), output_tokens: self.output_tokens.max(other.output_tokens) }
    }
}

/// The usage of a whole JSON reply; `Err` if the reply is no JSON object with choices.
pub fn of_reply(body: &[u8]) -> Result<Option<Usage>, ()> {
    #[derive(Deserialize)]
    struct Shape {
        #[expect(dead_code, reason = "its presence is what counts")]
        choices: Vec<serde::de::IgnoredAny>,
    }
    #[derive(Deserialize)]
    struct Reply {
        usage: Option<WireUsage>,
    }
    serde_json::from_slice::<Shape>(body).map_err(|_| ())?;
    Ok(serde_json::from_slice::<Reply>(body).ok().and_then(|reply| reply.usage).and_then(|usage| usage.checked()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_usage_is_unknown() {
        for (usage, expected) in [
            (r#"{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}"#, Some((3, 4))),
            (r#"{"prompt_tokens":3,"completion_tokens":4,"total_tokens":17}"#, Some((3, 14))),
            (r#"{"prompt_tokens":3}"#, Some((3, 0))),
            (r#"{"prompt_tokens":0,"completion_tokens":0}"#, Some((0, 0))),
            (r#"{"prompt_tokens":-3,"completion_tokens":4}"#, None),
            (r#"{"prompt_tokens":"3","completion_tokens":4}"#, None),
            (r#"{"prompt_tokens":3.5,"completion_tokens":4}"#, None),
            (r#"{"prompt_tokens":9223372036854775808,"completion_tokens":4}"#, None),
            (r#"{"prompt_tokens":3,"prompt_tokens":1,"completion_tokens":4}"#, None),
            ("{}", None),
            ("null", None),
            ("[]", None),
        ] {
            let reply = format!(r#"{{"choices":[],"usage":{usage}}}"#);
            let got = of_reply(reply.as_bytes()).map(|u| u.map(|u| (u.input_tokens, u.output_tokens)));
            assert_eq!(got, Ok(expected), "{usage}");
        }
        assert_eq!(of_reply(br#"{"choices":[{}]}"#), Ok(None));
        for bad in ["", "{", "[]", "{}", r#"{"choices":{}}"#] {
            assert_eq!(of_reply(bad.as_bytes()), Err(()), "{bad}");
        }
    }
}
