//! URL templates: parsed once, filled in one pass.

use std::fmt::Write as _;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::{Map, Value};
use toolbus_core::recipients::may_read_as;
use url::Url;

/// Everything but the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Longest URL that is sent, in bytes: servers refuse longer ones anyway.
const MAX_URL: usize = 16 * 1024;

/// A URL with placeholders in its path and query.
///
/// Scheme, host and port are fixed when the template is parsed; nothing that is filled in can reach them.
#[derive(Debug)]
pub(super) struct UrlTemplate {
    /// Scheme, host and port.
    origin: Url,
    /// Parts that `/` separates, without the empty text before the first.
    path: Vec<UrlParts>,
    /// Pairs that `&` separates.
    query: Vec<QueryPair>,
}

/// Literal texts and placeholders, in their order.
#[derive(Debug, Default)]
struct UrlParts(Vec<UrlPart>);

#[derive(Debug)]
enum UrlPart {
    /// Text of the URL.
    Literal(String),
    /// Stands for the argument of this name.
    Placeholder(String),
}

/// `name=value`.
#[derive(Debug)]
struct QueryPair {
    /// The name, decoded, when it has no placeholder.
    name: Option<String>,
    parts: UrlParts,
}

/// Reason why arguments do not make a URL. The caller reads these.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum UrlFillError {
    #[error("Argument `{0}` is missing: it is part of the address.")]
    Missing(String),
    #[error("Argument `{0}` is empty: it is part of the address, and must not be.")]
    Empty(String),
    #[error("Argument `{0}` must not contain `.` or `..` as a step of a path.")]
    DotSegment(String),
    #[error("Argument `{0}` has a fixed value in this tool. Leave it out.")]
    Fixed(String),
    #[error("The arguments make an address of more than {MAX_URL} bytes. Shorten them.")]
    TooLong,
    #[error("The arguments do not make a usable address.")]
    Unusable,
}

impl UrlTemplate {
    /// Every placeholder's name; one that occurs twice comes twice.
    pub(super) fn placeholders(&self) -> impl Iterator<Item = &str> {
        self.path.iter().chain(self.query.iter().map(|pair| &pair.parts)).flat_map(UrlParts::placeholders)
    }

    /// Whether the query has a pair already for which a server may read one of this name.
    pub(super) fn fixes(&self, name: &str) -> bool {
        self.query.iter().filter_map(|pair| pair.name.as_deref()).any(|own| own == name || may_read_as(name, own))
    }

    /// The URL for `arguments`; `extra` are those that go to the query beside the placeholders.
    pub(super) fn fill<'a>(
        &self,
        arguments: &Map<String, Value>,
        extra: impl IntoIterator<Item = (&'a String, &'a Value)>,
    ) -> Result<Url, UrlFillError> {
        let mut path = String::new();
        for segment in &self.path {
            path.push('/');
            segment.fill_path(arguments, &mut path)?;
        }
        let mut query = Vec::new();
        for pair in &self.query {
            query.extend(pair.parts.fill_query(arguments));
        }
        for (name, value) in extra {
            if self.fixes(name) {
                return Err(UrlFillError::Fixed(name.clone()));
            }
            query.extend(values(value).map(|value| format!("{}={}", encoded(name), encoded(&text(value)))));
        }
        let query = query.join("&");
        if path.len() + query.len() > MAX_URL {
            return Err(UrlFillError::TooLong);
        }
        let mut url = self.origin.clone();
        url.set_path(&path);
        url.set_query((!query.is_empty()).then_some(&query));
        // After the checks above this cannot fail; a difference between them and the parser must not become a request.
        let segments = url.path_segments().map_or(0, Iterator::count);
        (segments == self.path.len()).then_some(url).ok_or(UrlFillError::Unusable)
    }
}

impl UrlParts {
    fn placeholders(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            UrlPart::Literal(_) => None,
            UrlPart::Placeholder(name) => Some(name.as_str()),
        })
    }

    fn fill_path(&self, arguments: &Map<String, Value>, path: &mut String) -> Result<(), UrlFillError> {
        let start = path.len();
        for part in &self.0 {
            match part {
                UrlPart::Literal(literal) => path.push_str(literal),
                UrlPart::Placeholder(name) => {
                    let value = argument(arguments, name).ok_or_else(|| UrlFillError::Missing(name.clone()))?;
                    let value = text(value);
                    if value.is_empty() {
                        return Err(UrlFillError::Empty(name.clone()));
                    }
                    path.push_str(&encoded(&value));
                }
            }
        }
        match self.placeholders().next() {
            Some(name) if path.get(start..).is_some_and(has_dot_segment) => {
                Err(UrlFillError::DotSegment(name.to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Nothing when an argument is absent: the whole pair goes with it.
    fn fill_query(&self, arguments: &Map<String, Value>) -> Option<String> {
        let mut pair = String::new();
        for part in &self.0 {
            match part {
                UrlPart::Literal(literal) => pair.push_str(literal),
                UrlPart::Placeholder(name) => {
                    let value = text(argument(arguments, name)?);
                    // Writing to a string cannot fail.
                    let _ = write!(pair, "{}", utf8_percent_encode(&value, RESERVED));
                }
            }
        }
        Some(pair)
    }
}

/// The argument; null counts as absent.
fn argument<'a>(arguments: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    arguments.get(name).filter(|value| !value.is_null())
}

/// A value as it stands in a URL, before encoding: strings raw, all else as JSON.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The values that a query repeats its name for: an array's elements, or the value alone; none for null.
fn values(value: &Value) -> impl Iterator<Item = &Value> {
    let (many, one) = match value {
        Value::Array(elements) => (elements.as_slice(), None),
        other => (&[][..], Some(other)),
    };
    many.iter().chain(one).filter(|value| !value.is_null())
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Reason why a text is no URL template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlTemplateError {
    /// Not an absolute `http` or `https` URL.
    #[error("must start with `http://` or `https://`, followed by a host")]
    NotHttp,
    /// An argument would choose where the request goes.
    #[error("a placeholder may stand in the path or the query only, not in the {0}")]
    Misplaced(&'static str),
    /// Credentials in the URL.
    #[error("must not hold a user name or password; use `auth`")]
    UserInfo,
    /// A fragment.
    #[error("must not have a fragment (`#…`): it would never be sent")]
    Fragment,
    /// A brace without its partner, or one inside another.
    #[error("has an unbalanced brace; a placeholder is `{{name}}`, and a literal brace is `%7B` or `%7D`")]
    Unbalanced,
    /// Braces around something that is no name.
    #[error("has a placeholder whose name is empty or holds other characters than letters, digits, `_`, `-` and `.`")]
    Name,
    /// A character that is not allowed in a URL.
    #[error("must not hold spaces, control characters or backslashes; percent-encode them")]
    Character,
    /// `.` or `..` in the path.
    #[error("must not have `.` or `..` as a step of its path")]
    DotSegment,
    /// The URL parser's own refusal.
    #[error("is not a URL: {0}")]
    Url(#[from] url::ParseError),
}

impl UrlTemplate {
    /// Parses a template.
    pub(crate) fn parse(template: &str) -> Result<Self, UrlTemplateError> {
        if template.chars().any(|c| c.is_whitespace() || c.is_control() || c == '\\') {
            return Err(UrlTemplateError::Character);
        }
        let (scheme, rest) = template.split_once("://").unwrap_or((template, ""));
        if scheme.contains(['{', '}']) {
            return Err(UrlTemplateError::Misplaced("scheme"));
        }
        if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
            return Err(UrlTemplateError::NotHttp);
        }
        let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        check_authority(authority)?;
        let (rest, fragment) = rest.split_once('#').map_or((rest, None), |(rest, fragment)| (rest, Some(fragment)));
        match fragment {
            Some(fragment) if fragment.contains(['{', '}']) => return Err(UrlTemplateError::Misplaced("fragment")),
            Some(_) => return Err(UrlTemplateError::Fragment),
            None => {}
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = path.strip_prefix('/').unwrap_or(path).split('/').map(segment).collect::<Result<_, _>>()?;
        let query = query.split('&').filter(|pair| !pair.is_empty()).map(pair).collect::<Result<_, _>>()?;
        Ok(Self { origin: Url::parse(&format!("{scheme}://{authority}/"))?, path, query })
    }
}

fn check_authority(authority: &str) -> Result<(), UrlTemplateError> {
    let (userinfo, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    let (host, port) = host.rsplit_once(':').unwrap_or((host, ""));
    let has_brace = |text: &str| text.contains(['{', '}']);
    match userinfo {
        Some(userinfo) if has_brace(userinfo) => Err(UrlTemplateError::Misplaced("user name or password")),
        Some(_) => Err(UrlTemplateError::UserInfo),
        None if has_brace(host) => Err(UrlTemplateError::Misplaced("host")),
        None if has_brace(port) => Err(UrlTemplateError::Misplaced("port")),
        None if host.is_empty() => Err(UrlTemplateError::NotHttp),
        None => Ok(()),
    }
}

fn segment(text: &str) -> Result<UrlParts, UrlTemplateError> {
    if has_dot_segment(text) {
        return Err(UrlTemplateError::DotSegment);
    }
    parts(text)
}

fn pair(text: &str) -> Result<QueryPair, UrlTemplateError> {
    let (name, _) = text.split_once('=').unwrap_or((text, ""));
    let name = (!name.contains('{')).then(|| percent_decode_str(name).decode_utf8_lossy().into_owned());
    Ok(QueryPair { name, parts: parts(text)? })
}

fn parts(mut text: &str) -> Result<UrlParts, UrlTemplateError> {
    let mut parts = Vec::new();
    while let Some((literal, rest)) = text.split_once('{') {
        let (name, rest) = rest.split_once('}').ok_or(UrlTemplateError::Unbalanced)?;
        if name.contains('{') {
            return Err(UrlTemplateError::Unbalanced);
        }
        if name.is_empty() || !name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.')) {
            return Err(UrlTemplateError::Name);
        }
        push_literal(&mut parts, literal)?;
        parts.push(UrlPart::Placeholder(name.to_owned()));
        text = rest;
    }
    push_literal(&mut parts, text)?;
    Ok(UrlParts(parts))
}

fn push_literal(parts: &mut Vec<UrlPart>, literal: &str) -> Result<(), UrlTemplateError> {
    if literal.contains('}') {
        return Err(UrlTemplateError::Unbalanced);
    }
    if !literal.is_empty() {
        parts.push(UrlPart::Literal(literal.to_owned()));
    }
    Ok(())
}

/// Rounds of decoding that are looked through: a proxy and a server may decode once each.
const ROUNDS: usize = 4;

/// Whether a path segment is, or may be decoded to, something with a step to this or the parent folder in it.
///
/// Servers and the proxies before them decode at different times, so `%2e%2e`, `a%2F..%2Fb`, `..%5Cb` and the same
/// encoded again count as well.
fn has_dot_segment(segment: &str) -> bool {
    let mut text = segment.to_owned();
    for _ in 0..ROUNDS {
        if text.split(['/', '\\']).any(|part| part == "." || part == "..") {
            return true;
        }
        let decoded = percent_decode_str(&text).decode_utf8_lossy().into_owned();
        if decoded == text {
            return false;
        }
        text = decoded;
    }
    // Encoded more often than anything honest: what it becomes is not followed any further.
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};
    use url::Url;

    use super::{MAX_URL, UrlFillError, UrlTemplate, UrlTemplateError, has_dot_segment};

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(fields) = value else { panic!("an object") };
        fields
    }

    fn fill(template: &str, arguments: Value) -> Result<String, UrlFillError> {
        fill_with(template, arguments, json!({}))
    }

    fn fill_with(template: &str, arguments: Value, extra: Value) -> Result<String, UrlFillError> {
        UrlTemplate::parse(template).unwrap().fill(&object(arguments), &object(extra)).map(String::from)
    }

    #[test]
    fn every_placeholder_of_path_and_query_is_filled_once_and_encoded() {
        let any = "aZ09-._~ /?#[]@!$&'()*+,;=:%é";
        let encoded = "aZ09-._~%20%2F%3F%23%5B%5D%40%21%24%26%27%28%29%2A%2B%2C%3B%3D%3A%25%C3%A9";
        let table = [
            (
                "https://h:8443/v1/{a}/x{b}y?c={c}&d=1",
                json!({"a": "A", "b": "B", "c": "C"}),
                "https://h:8443/v1/A/xBy?c=C&d=1",
            ),
            ("http://h/{a}/{a}?a={a}", json!({"a": 1}), "http://h/1/1?a=1"),
            // Placeholders in arguments are not filled.
            ("http://h/{a}?b={b}", json!({"a": "{b}", "b": "{a}{b}"}), "http://h/%7Bb%7D?b=%7Ba%7D%7Bb%7D"),
            ("http://h/{a}?a={a}", json!({"a": any}), &format!("http://h/{encoded}?a={encoded}")),
            // Dots are a step in the path alone.
            ("http://h/?f={f}", json!({"f": "../.."}), "http://h/?f=..%2F.."),
            ("HTTP://[::1]:8080/{a}", json!({"a": 1}), "http://[::1]:8080/1"),
        ];
        for (template, arguments, url) in table {
            assert_eq!(fill(template, arguments).unwrap(), url, "{template}");
        }
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
            assert_eq!(fill("http://h/{city}", arguments), Err(UrlFillError::Missing("city".to_owned())));
        }
        assert_eq!(fill("http://h/{city}", json!({"city": ""})), Err(UrlFillError::Empty("city".to_owned())));
    }

    #[test]
    fn a_dot_segment_is_refused_however_it_is_written() {
        for value in [".", "..", "%2e%2e", ".%2E", "%252e", "a/../b", "..\\b", "../../etc/passwd"] {
            for template in ["http://h/{f}", "http://h/x/{f}/y", "http://h/a/{f}?q=1"] {
                assert_eq!(
                    fill(template, json!({"f": value})),
                    Err(UrlFillError::DotSegment("f".to_owned())),
                    "{value}"
                );
            }
        }
    }

    #[test]
    fn values_that_make_a_dot_segment_together_with_their_surroundings_are_refused() {
        assert_eq!(fill("http://h/.{f}/x", json!({"f": "."})), Err(UrlFillError::DotSegment("f".to_owned())));
        assert_eq!(fill("http://h/{f}.", json!({"f": "a/."})), Err(UrlFillError::DotSegment("f".to_owned())));
        assert_eq!(fill("http://h/{f}x", json!({"f": "."})).unwrap(), "http://h/.x");
    }

    #[test]
    fn extra_arguments_are_appended_to_the_query() {
        let extra = json!({"a b": "c&d", "list": [1, null, "x"], "n": null, "o": {"k": 1}, "t": true});
        let url = fill_with("http://h/?fixed=1", json!({}), extra).unwrap();
        assert_eq!(url, "http://h/?fixed=1&a%20b=c%26d&list=1&list=x&o=%7B%22k%22%3A1%7D&t=true");
    }

    #[test]
    fn an_extra_argument_cannot_override_a_fixed_one() {
        let refused = fill_with("http://h/?us%65r=me&q={q}", json!({}), json!({"user": "you"}));
        assert_eq!(refused, Err(UrlFillError::Fixed("user".to_owned())));
    }

    #[test]
    fn an_argument_that_a_server_may_read_as_a_fixed_one_is_refused() {
        for name in ["User", "USER", "user[]", "User[0]", "[user]", " user", "user ", "user.x"] {
            let refused = fill_with("http://h/?user={a}", json!({"a": "maria"}), json!({name: "boss"}));
            assert_eq!(refused, Err(UrlFillError::Fixed(name.to_owned())));
        }
        for name in ["users", "use", "user_id", "üser"] {
            assert!(fill_with("http://h/?user={a}", json!({"a": "maria"}), json!({name: 1})).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_url_that_grows_too_long_is_refused() {
        assert_eq!(fill("http://h/?q={q}", json!({"q": "x".repeat(MAX_URL)})), Err(UrlFillError::TooLong));
    }

    #[test]
    fn a_template_that_cannot_be_meant_is_refused_with_the_reason() {
        use UrlTemplateError as E;
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
            assert_eq!(UrlTemplate::parse(template).unwrap_err(), expected, "{template}");
        }
        assert!(matches!(UrlTemplate::parse("http://h:99999/"), Err(E::Url(_))));
        assert!(matches!(UrlTemplate::parse("http://[::1/"), Err(E::Url(_))));
    }

    /// Texts with everything that could break out of a part of a URL.
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
        fn no_argument_leaves_its_part_of_the_url(a in hostile(), b in hostile(), c in hostile()) {
            let template = UrlTemplate::parse("https://api.example:8443/v1/{a}/x?b={b}&z=1").unwrap();
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
            let _ = UrlTemplate::parse(&template);
        }
    }

    #[test]
    fn every_spelling_of_a_dot_segment_is_found_and_dots_that_are_part_of_a_name_are_kept() {
        let spelt =
            [".", "..", "%2e", "%2E%2e", ".%2e", "%252e%252E", "a%2F..%2Fb", "..%5Cb", "a/../b", "%25252e%25252e"];
        // Encoded too often to look through.
        let deep = (4..50).map(|depth| format!("%{0}2e%{0}2e", "25".repeat(depth)));
        for segment in spelt.map(str::to_owned).into_iter().chain(deep) {
            assert!(has_dot_segment(&segment), "{segment}");
        }
        for segment in ["", "...", "a.b", "..a", ".hidden", "a%2Fb", "100%", "%zz", "v1.2"] {
            assert!(!has_dot_segment(segment), "{segment}");
        }
    }
}
