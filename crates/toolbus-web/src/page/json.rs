//! JSON with line breaks.

use serde::de::IgnoredAny;

/// Spaces per level.
const INDENT: usize = 2;

/// The same JSON with line breaks and indentation: order, numbers and strings stay as they are written. `None` if it is no
/// JSON, or would be longer than `limit`, in bytes: deep nesting makes each value a long line.
pub(super) fn pretty(text: &str, limit: usize) -> Option<String> {
    // Limits the depth, too.
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    let mut pretty = String::with_capacity(text.len() + text.len() / 4);
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    let mut chars = text.chars().peekable();
    let line = |pretty: &mut String, depth: usize| {
        pretty.push('\n');
        pretty.extend(std::iter::repeat_n(' ', depth * INDENT));
    };
    while let Some(c) = chars.next() {
        if pretty.len() > limit {
            return None;
        }
        if in_string {
            pretty.push(c);
            in_string = is_escaped || c != '"';
            is_escaped = !is_escaped && c == '\\';
            continue;
        }
        match c {
            c if c.is_ascii_whitespace() => {}
            '"' => {
                in_string = true;
                pretty.push(c);
            }
            '{' | '[' => {
                pretty.push(c);
                while chars.next_if(char::is_ascii_whitespace).is_some() {}
                let end = if c == '{' { '}' } else { ']' };
                if chars.next_if_eq(&end).is_some() {
                    pretty.push(end);
                } else {
                    depth += 1;
                    line(&mut pretty, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut pretty, depth);
                pretty.push(c);
            }
            ',' => {
                pretty.push(c);
                line(&mut pretty, depth);
            }
            ':' => pretty.push_str(": "),
            _ => pretty.push(c),
        }
    }
    Some(pretty)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::pretty;

    #[test]
    fn order_and_numbers_stay_as_they_are_written() {
        let text = r#" {"b":[1.0e400, {"a":"x\"}{,:"}],"a":[ ],"c":{ } } "#;
        let expected =
            "{\n  \"b\": [\n    1.0e400,\n    {\n      \"a\": \"x\\\"}{,:\"\n    }\n  ],\n  \"a\": [],\n  \"c\": {}\n}";
        assert_eq!(pretty(text, 1000).unwrap(), expected);
        assert_eq!(pretty("[1,\n\t2]", 1000).unwrap(), "[\n  1,\n  2\n]");
        assert_eq!(pretty("{", 1000), None);
        assert_eq!(pretty(&"[".repeat(100_000), 1000), None);
        let deep = format!("{}{}1{}", "[".repeat(100), "1,".repeat(1000), "]".repeat(100));
        assert!(pretty(&deep, 1 << 20).is_some_and(|pretty| pretty.len() > 200_000));
        assert_eq!(pretty(&deep, 100_000), None);
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".*".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(".*", inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn pretty_json_means_the_same(value in value()) {
            let pretty = pretty(&value.to_string(), usize::MAX).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Value>(&pretty).unwrap(), &value);
            prop_assert_eq!(pretty, serde_json::to_string_pretty(&value).unwrap());
        }
    }
}
