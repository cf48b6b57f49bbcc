use proptest::prelude::*;
use serde_json::json;

use super::*;

fn template(command: &[&str]) -> Result<Template, TemplateError> {
    Template::parse(&command.iter().map(|element| (*element).to_owned()).collect::<Vec<_>>())
}

/// The arguments that elements make, with `-` allowed for `dash`.
fn filled(elements: &[&str], arguments: &Value) -> Result<Vec<String>, String> {
    let command = [&["prog"], elements].concat();
    let arguments = arguments.as_object().unwrap();
    template(&command).unwrap().fill(arguments, &["dash".to_owned()]).map_err(|error| error.to_string())
}

#[test]
fn each_element_becomes_one_argument() {
    let arguments = json!({
        "s": "two words; $(id) `x` 'q' \"d\" | > *\n", "n": 3, "f": 1.5, "b": true, "empty": "", "braces": "{s}", "nothing": null,
        "list": ["a", 1, false, "b c"], "none": [],
    });
    let hostile = "two words; $(id) `x` 'q' \"d\" | > *\n";
    let table: Vec<(&[&str], Vec<&str>)> = vec![
        (&["{s}"], vec![hostile]),
        (&["-n", "{n}", "{f}", "{b}"], vec!["-n", "3", "1.5", "true"]),
        (&["--max={n}-{b}"], vec!["--max=3-true"]),
        (&["{empty}"], vec![""]),
        (&[""], vec![""]),
        (&["{braces}"], vec!["{s}"]),
        (&["{{s}}", "{{{n}}}", "a}}b"], vec!["{s}", "{3}", "a}b"]),
        (&["a", "{absent}", "{nothing}", "b"], vec!["a", "b"]),
        (&["--since={absent}", "--n={n}"], vec!["--n=3"]),
        (&["{n}{absent}"], vec![]),
        (&["{list...}", "end"], vec!["a", "1", "false", "b c", "end"]),
        (&["{none...}", "{absent...}", "end"], vec!["end"]),
        (&["{with space}"], vec![]),
    ];
    for (elements, expected) in table {
        assert_eq!(filled(elements, &arguments).unwrap(), expected, "{elements:?}");
    }
}

#[test]
fn a_value_that_would_be_taken_for_an_option_is_refused() {
    let refused = "Argument `s` must not begin with `-`: the program would take it for an option.";
    let table: Vec<(&[&str], Value)> = vec![
        (&["{s}"], json!({"s": "--output=/etc/passwd"})),
        (&["{s}"], json!({"s": "-"})),
        (&["{s}"], json!({"s": -5})),
        (&["{s}x"], json!({"s": "-x"})),
        (&["{s}-x"], json!({"s": ""})),
        (&["{s...}"], json!({"s": ["a", "-x"]})),
        (&["{e}{s}"], json!({"e": "", "s": "-x"})),
        (&["{dash}{s}"], json!({"dash": "", "s": "-x"})),
    ];
    for (elements, arguments) in table {
        assert_eq!(filled(elements, &arguments), Err(refused.to_owned()), "{elements:?} {arguments}");
    }
}

#[test]
fn a_value_may_begin_with_a_dash_where_it_cannot_be_an_option_or_is_allowed() {
    let table: Vec<(&[&str], Value, &str)> = vec![
        (&["--text={s}"], json!({"s": "-x"}), "--text=-x"),
        (&["x{s}"], json!({"s": "-x"}), "x-x"),
        (&["{dash}"], json!({"dash": "-x"}), "-x"),
        (&["{dash...}"], json!({"dash": ["-x"]}), "-x"),
        (&["{n}-x"], json!({"n": 1}), "1-x"),
    ];
    for (elements, arguments, expected) in table {
        assert_eq!(filled(elements, &arguments).unwrap(), [expected], "{elements:?}");
    }
}

#[test]
fn values_that_are_no_argument_are_refused() {
    let table: Vec<(&[&str], Value, &str)> = vec![
        (&["{s}"], json!({"s": ["a"]}), "Argument `s` must be a string, a number or a boolean."),
        (&["{s}"], json!({"s": {"a": 1}}), "Argument `s` must be a string, a number or a boolean."),
        (&["{s...}"], json!({"s": "a"}), "Argument `s` must be a list."),
        (&["{s...}"], json!({"s": [["a"]]}), "Each item of argument `s` must be a string, a number or a boolean."),
        (&["{s...}"], json!({"s": [null]}), "Each item of argument `s` must be a string, a number or a boolean."),
        (&["x{s}"], json!({"s": "a\0b"}), "Argument `s` must not contain a NUL character."),
        (&["{s...}"], json!({"s": ["\0"]}), "Argument `s` must not contain a NUL character."),
        (&["{s}"], json!({"s": "x".repeat(128 * 1024)}), "The arguments are larger than 131072 bytes. Shorten them."),
        (&["{s...}"], json!({"s": vec!["x"; 65537]}), "The arguments are larger than 131072 bytes. Shorten them."),
    ];
    for (elements, arguments, expected) in table {
        assert_eq!(filled(elements, &arguments), Err(expected.to_owned()), "{elements:?}");
    }
    assert!(filled(&["{s}"], &json!({"s": "x".repeat(128 * 1024 - 1)})).is_ok());
}

#[test]
fn commands_with_a_mistake_are_refused() {
    let table: Vec<(&[&str], &str)> = vec![
        (&[], r#"is empty; give the program and its arguments, as ["git", "status"]"#),
        (&[""], r#"is empty; give the program and its arguments, as ["git", "status"]"#),
        (&["{p}"], "has a placeholder in its program, which must be fixed"),
        (&["/bin/{p}"], "has a placeholder in its program, which must be fixed"),
        (&["{p...}"], "has a placeholder in its program, which must be fixed"),
        (&["p", "{a"], "has a single brace in `{a`; write `{{` or `}}` for a brace, and `{name}` for an argument"),
        (&["p", "a}"], "has a single brace in `a}`; write `{{` or `}}` for a brace, and `{name}` for an argument"),
        (
            &["p", "{a{b}"],
            "has a single brace in `{a{b}`; write `{{` or `}}` for a brace, and `{name}` for an argument",
        ),
        (&["p", "x{}"], "has a placeholder without a name in `x{}`"),
        (&["p", "{...}"], "has a placeholder without a name in `{...}`"),
        (&["p", "x{a...}"], "has a list in `x{a...}`; `{a...}` must be an element of its own"),
        (&["p", "{a...}x"], "has a list in `{a...}x`; `{a...}` must be an element of its own"),
        (&["p", "{b}{a...}"], "has a list in `{b}{a...}`; `{a...}` must be an element of its own"),
        (&["p", "a\0"], r"has a NUL character in `a\u{0}`"),
    ];
    for (command, expected) in table {
        assert_eq!(template(command).unwrap_err().to_string(), expected, "{command:?}");
    }
}

#[test]
fn the_placeholders_are_known_with_their_use() {
    let template = template(&["p", "--x={a}{b}", "{c...}", "{{d}}"]).unwrap();
    let placeholders: Vec<_> = template.placeholders().collect();
    assert_eq!(placeholders, [("a", Use::Value), ("b", Use::Value), ("c", Use::List)]);
}

proptest! {
    #[test]
    fn whatever_a_value_is_it_stays_within_its_argument(value in r"[^\x00]{0,20}") {
        let arguments = json!({"value": value, "dash": value});
        prop_assert_eq!(filled(&["a", "x={value}", "{dash}", "b"], &arguments).unwrap(), [
            "a".to_owned(), format!("x={value}"), value, "b".to_owned(),
        ]);
    }

    #[test]
    fn no_text_makes_the_parser_fail_in_another_way(text in r"[{}.ab]{0,8}") {
        let parsed = template(&["p", &text]);
        prop_assert!(parsed.is_ok() || matches!(
            parsed,
            Err(TemplateError::Brace(_) | TemplateError::Nameless(_) | TemplateError::List(..))
        ));
    }
}
