use proptest::prelude::*;
use serde_json::{Map, Value, json};
use url::Url;

use super::{FillError, MAX_URL, Template, TemplateError};

fn object(value: Value) -> Map<String, Value> {
    let Value::Object(members) = value else { panic!("an object") };
    members
}

fn fill(template: &str, arguments: Value) -> Result<String, FillError> {
    fill_with(template, arguments, json!({}))
}

fn fill_with(template: &str, arguments: Value, extra: Value) -> Result<String, FillError> {
    Template::parse(template).unwrap().fill(&object(arguments), &object(extra)).map(String::from)
}

#[test]
fn placeholders_are_filled_in_path_and_query() {
    let url = fill("https://h:8443/v1/{a}/x{b}y?c={c}&d=1", json!({"a": "A", "b": "B", "c": "C"}));
    assert_eq!(url.unwrap(), "https://h:8443/v1/A/xBy?c=C&d=1");
}

#[test]
fn a_placeholder_that_occurs_twice_is_filled_twice() {
    assert_eq!(fill("http://h/{a}/{a}?a={a}", json!({"a": 1})).unwrap(), "http://h/1/1?a=1");
}

#[test]
fn substituted_text_is_not_substituted_again() {
    let url = fill("http://h/{a}?b={b}", json!({"a": "{b}", "b": "{a}{b}"}));
    assert_eq!(url.unwrap(), "http://h/%7Bb%7D?b=%7Ba%7D%7Bb%7D");
}

#[test]
fn only_unreserved_characters_stay_unencoded() {
    let url = fill("http://h/{a}?a={a}", json!({"a": "aZ09-._~ /?#[]@!$&'()*+,;=:%é"}));
    let encoded = "aZ09-._~%20%2F%3F%23%5B%5D%40%21%24%26%27%28%29%2A%2B%2C%3B%3D%3A%25%C3%A9";
    assert_eq!(url.unwrap(), format!("http://h/{encoded}?a={encoded}"));
}

#[test]
fn every_kind_of_value_has_its_text() {
    let table = [
        (json!("a b"), "a%20b"),
        (json!(true), "true"),
        (json!(false), "false"),
        (json!(1.5), "1.5"),
        (json!(-7), "-7"),
        (json!([1, "x"]), "%5B1%2C%22x%22%5D"),
        (json!({"k": null}), "%7B%22k%22%3Anull%7D"),
        (json!(""), ""),
    ];
    for (value, text) in table {
        assert_eq!(fill("http://h/?q={q}", json!({"q": value})).unwrap(), format!("http://h/?q={text}"));
    }
}

#[test]
fn an_absent_argument_drops_its_whole_pair() {
    for arguments in [json!({"b": 2}), json!({"a": null, "b": 2})] {
        assert_eq!(fill("http://h/x?a={a}&b={b}&c={a}-{b}&d", arguments).unwrap(), "http://h/x?b=2&d");
    }
    assert_eq!(fill("http://h/x?a={a}", json!({})).unwrap(), "http://h/x");
}

#[test]
fn an_absent_or_empty_argument_in_the_path_is_refused_by_name() {
    for arguments in [json!({}), json!({"city": null})] {
        assert_eq!(fill("http://h/{city}", arguments), Err(FillError::Missing("city".to_owned())));
    }
    assert_eq!(fill("http://h/{city}", json!({"city": ""})), Err(FillError::Empty("city".to_owned())));
}

#[test]
fn a_dot_segment_is_refused_however_it_is_written() {
    for value in [".", "..", "%2e%2e", ".%2E", "%252e", "a/../b", "..\\b", "../../etc/passwd"] {
        for template in ["http://h/{f}", "http://h/x/{f}/y", "http://h/a/{f}?q=1"] {
            assert_eq!(fill(template, json!({"f": value})), Err(FillError::DotSegment("f".to_owned())), "{value}");
        }
    }
}

#[test]
fn values_that_make_a_dot_segment_together_with_their_surroundings_are_refused() {
    assert_eq!(fill("http://h/.{f}/x", json!({"f": "."})), Err(FillError::DotSegment("f".to_owned())));
    assert_eq!(fill("http://h/{f}.", json!({"f": "a/."})), Err(FillError::DotSegment("f".to_owned())));
    assert_eq!(fill("http://h/{f}x", json!({"f": "."})).unwrap(), "http://h/.x");
}

#[test]
fn dots_in_the_query_are_just_text() {
    assert_eq!(fill("http://h/?f={f}", json!({"f": "../.."})).unwrap(), "http://h/?f=..%2F..");
}

#[test]
fn extra_arguments_are_appended_to_the_query() {
    let extra = json!({"a b": "c&d", "list": [1, null, "x"], "n": null, "o": {"k": 1}, "t": true});
    let url = fill_with("http://h/?fixed=1", json!({}), extra).unwrap();
    assert_eq!(url, "http://h/?fixed=1&a%20b=c%26d&list=1&list=x&o=%7B%22k%22%3A1%7D&t=true");
}

#[test]
fn an_extra_argument_cannot_override_what_the_template_fixes() {
    let refused = fill_with("http://h/?us%65r=me&q={q}", json!({}), json!({"user": "you"}));
    assert_eq!(refused, Err(FillError::Fixed("user".to_owned())));
}

#[test]
fn a_url_that_grows_too_long_is_refused() {
    assert_eq!(fill("http://h/?q={q}", json!({"q": "x".repeat(MAX_URL)})), Err(FillError::TooLong));
}

#[test]
fn a_template_that_cannot_be_meant_is_refused_with_the_reason() {
    use TemplateError as E;
    let table = [
        ("{url}", E::Misplaced("scheme")),
        ("{scheme}://h/", E::Misplaced("scheme")),
        ("http://{host}/x", E::Misplaced("host")),
        ("http://{host}:80/x", E::Misplaced("host")),
        ("http://a.{host}", E::Misplaced("host")),
        ("http://h:{port}/x", E::Misplaced("port")),
        ("http://{user}@h/x", E::Misplaced("user name or password")),
        ("http://user:{pw}@h/x", E::Misplaced("user name or password")),
        ("http://h/x#{f}", E::Misplaced("fragment")),
        ("http://h/x#f", E::Fragment),
        ("http://user:pw@h/x", E::UserInfo),
        ("http://h/{x", E::Unbalanced),
        ("http://h/x}", E::Unbalanced),
        ("http://h/{{x}}", E::Unbalanced),
        ("http://h/{a/b}", E::Unbalanced),
        ("http://h/?q={a&b}", E::Unbalanced),
        ("http://h/{}", E::Name),
        ("http://h/{a$}", E::Name),
        ("http://h/{a b}", E::Character),
        ("http://h\\{x}", E::Character),
        ("http://h/a\tb", E::Character),
        ("ftp://h/x", E::NotHttp),
        ("file:///etc/passwd", E::NotHttp),
        ("h/x", E::NotHttp),
        ("http:h/x", E::NotHttp),
        ("http:///x", E::NotHttp),
        ("http://", E::NotHttp),
        ("http://h/a/../{x}", E::DotSegment),
        ("http://h/%2e%2e/{x}", E::DotSegment),
    ];
    for (template, expected) in table {
        assert_eq!(Template::parse(template).unwrap_err(), expected, "{template}");
    }
    assert!(matches!(Template::parse("http://h:99999/"), Err(E::Url(_))));
    assert!(matches!(Template::parse("http://[::1/"), Err(E::Url(_))));
}

#[test]
fn an_address_may_be_an_ip_literal() {
    assert_eq!(fill("HTTP://[::1]:8080/{a}", json!({"a": 1})).unwrap(), "http://[::1]:8080/1");
}

/// Texts with everything that could break out of a place in a URL.
fn hostile() -> impl Strategy<Value = String> {
    prop_oneof![
        "[{}/?#@:&=%.\\\\a-c \t\n+;]{0,12}",
        any::<String>(),
        Just("{b}".to_owned()),
        Just("//evil.example/".to_owned()),
        Just("@evil.example:1".to_owned()),
    ]
}

proptest! {
    #[test]
    fn nothing_that_is_filled_in_leaves_its_place(a in hostile(), b in hostile(), c in hostile()) {
        let template = Template::parse("https://api.example:8443/v1/{a}/x?b={b}&z=1").unwrap();
        let arguments = object(json!({"a": a, "b": b}));
        let extra = object(json!({"c": c}));
        let Ok(url) = template.fill(&arguments, &extra) else {
            // Only these are ever refused: an empty text, and one with a step of a path in it.
            prop_assert!(a.is_empty() || a.contains('.') || a.to_lowercase().contains("%"));
            return Ok(());
        };
        prop_assert_eq!(url.origin(), Url::parse("https://api.example:8443").unwrap().origin());
        prop_assert_eq!((url.username(), url.password(), url.fragment()), ("", None, None));
        // Decoding gives back exactly what was put in: nothing was substituted twice, nothing split.
        let segments: Vec<_> = url.path_segments().unwrap().collect();
        prop_assert_eq!(segments.len(), 3);
        let decoded = percent_encoding::percent_decode_str(segments[1]).decode_utf8().unwrap();
        prop_assert_eq!(decoded, a);
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let expected = [("b".to_owned(), b), ("z".to_owned(), "1".to_owned()), ("c".to_owned(), c)];
        prop_assert_eq!(pairs, expected);
        // A second parse, as the HTTP library does, changes nothing.
        prop_assert_eq!(Url::parse(url.as_str()).unwrap(), url);
    }

    #[test]
    fn parsing_a_template_never_panics(template in "(https?://)?[{}/?#@:&=%.\\\\a-c]{0,24}") {
        let _ = Template::parse(&template);
    }
}
