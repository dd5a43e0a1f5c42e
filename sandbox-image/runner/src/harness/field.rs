//! Places within a JSON value: `a.b`, `a[0].b`, `a[*].b`. Pure.

use agentrun_crds::agent_template::Match;
use serde_json::Value;

/// Every value at a path; none where it leads nowhere.
pub fn values<'v>(value: &'v Value, path: &str) -> Vec<&'v Value> {
    let mut found = vec![value];
    for segment in path.split('.') {
        let (name, indexes) = segment.split_once('[').map_or((segment, ""), |(name, indexes)| (name, indexes));
        found = found.into_iter().filter_map(|value| value.get(name)).collect();
        for index in indexes.split('[').map(|index| index.trim_end_matches(']')).filter(|index| !index.is_empty()) {
            found = match index.parse::<usize>() {
                Ok(index) => found.into_iter().filter_map(|value| value.get(index)).collect(),
                Err(_) => found.into_iter().filter_map(Value::as_array).flatten().collect(),
            };
        }
    }
    found
}

/// The texts at a path in one; what is no text is shown as JSON.
pub fn text(value: &Value, path: &str) -> String {
    values(value, path).into_iter().filter(|value| !value.is_null()).map(plain).collect::<Vec<_>>().join("\n")
}

/// Whether all of these hold.
pub fn holds(value: &Value, matches: &[Match]) -> bool {
    matches.iter().all(|wanted| {
        values(value, &wanted.path).into_iter().any(|found| !found.is_null() && (wanted.equals == "*" || plain(found) == wanted.equals))
    })
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_lead_to_values() {
        let value = json!({"type": "m", "n": 3, "no": null, "c": [{"t": "a", "u": true}, {"x": 1}, {"t": "b"}], "d": [[1, 2], [3]]});
        for (path, expected) in [
            ("type", "m"),
            ("n", "3"),
            ("no", ""),
            ("c[*].t", "a\nb"),
            ("c[2].t", "b"),
            ("c[9].t", ""),
            ("d[*][0]", "1\n3"),
            ("type.x", ""),
            ("x.y", ""),
        ] {
            assert_eq!(text(&value, path), expected, "{path}");
        }
        let wanted = |path: &str, equals: &str| [Match { path: path.into(), equals: equals.into() }];
        for (path, equals, expected) in [
            ("type", "m", true),
            ("type", "x", false),
            ("c[*].t", "b", true),
            ("c[0].u", "true", true),
            ("no", "*", false),
            ("n", "*", true),
            ("absent", "", false),
        ] {
            assert_eq!(holds(&value, &wanted(path, equals)), expected, "{path} {equals}");
        }
    }
}
