use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use proptest::prelude::*;
use serde_json::{Value, json};
use toolbus_protocol::ContentBlock;

use super::forms::forms;
use super::{Known, MAX_OUTDATED, MAX_OUTDATED_BYTES, Obstacle, Redactor, obstacle};
use crate::Clock;
use crate::failure::{Cause, ToolFailure};
use crate::results::SplitRule;
use crate::secret::Secret;
use crate::tool::{Program, ToolOutput};

const TOKEN: &str = "tok-Zq7+Yw/3 Ä\"x\\";

fn knowing<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Redactor {
    let redactor = Redactor::default();
    redactor.configure(secrets.into_iter().map(Secret::from));
    redactor
}

fn json_of(redactor: &Redactor, text: &str) -> Option<String> {
    redactor.json(text.as_bytes()).map(|bytes| String::from_utf8(bytes).unwrap())
}

#[test]
fn a_secret_is_removed_as_it_is_and_as_encodings_write_it() {
    let redactor = knowing([TOKEN]);
    let table = [
        TOKEN,
        "tok-Zq7%2BYw%2F3%20%C3%84%22x%5C",
        "tok-Zq7%2bYw%2f3%20%c3%84%22x%5c",
        "tok-Zq7%2BYw%2F3+%C3%84%22x%5C",
        "tok-Zq7+Yw%2F3%20%C3%84%22x%5C",
        r#"tok-Zq7+Yw/3 Ä\"x\\"#,
        r#"tok-Zq7+Yw\/3 Ä\"x\\"#,
        r#"tok-Zq7+Yw/3 \u00c4\"x\\"#,
        r#"tok-Zq7+Yw/3 Ä\\\"x\\\\"#,
        r#"tok-Zq7+Yw/3 \u00C4\"x\\"#,
        r#"tok-Zq7\u002BYw/3 \u00C4\u0022x\\"#,
        // `urllib.parse.quote`, `encodeURI`, and encoders that escape every character.
        "tok-Zq7%2BYw/3%20%C3%84%22x%5C",
        "tok-Zq7+Yw/3%20%C3%84%22x%5C",
        "%74%6F%6b%2D%5A%71%37%2B%59%77%2F%33%20%C3%84%22%78%5C",
        // JSON in a URL.
        "tok-Zq7%2BYw%5C%2F3%20%5Cu00c4%5C%22x%5C%5C",
    ];
    for form in table {
        assert_eq!(redactor.text(&format!("a={form}&b")), "a=[redacted]&b", "{form}");
    }
}

#[test]
fn a_secret_is_removed_from_json_whatever_its_writer_escapes() {
    let redactor = knowing(["a+b&c<d>e'f`g=h", "tab\u{1f}-and-é"]);
    let table = [
        r"a+b\u0026c\u003cd\u003ee'f`g=h",
        r"a+b\u0026c\u003Cd\u003Ee'f`g=h",
        r"a+b\u0026c\u003cd\u003ee\u0027f`g\u003dh",
        r"a+b\u0026c\u003Cd\u003Ee\u0027f`g=h",
        r"a\u002Bb\u0026c\u003Cd\u003Ee\u0027f\u0060g=h",
        r"a\u002bb\u0026c\u003cd\u003ee\u0027f\u0060g=h",
        r"a\\u002Bb\\u0026c\\u003Cd\\u003Ee\\u0027f\\u0060g=h",
        r"tab\u001F-and-\u00E9",
        r"tab\u001f-and-\u00e9",
        r"tab\u001f-and-é",
    ];
    for form in table {
        assert_eq!(redactor.text(&format!(r#"{{"a":"{form}"}}"#)), r#"{"a":"[redacted]"}"#);
    }
}

#[test]
fn a_secret_is_removed_from_json_within_json_whatever_each_writer_escapes() {
    let secret = "tok/Zq7-x\"y\\é😀";
    let redactor = knowing([secret]);
    let everything = |text: &str| text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
    type Writer<'a> = &'a dyn Fn(&str) -> String;
    let writers: [(&str, Writer<'_>); 4] = [
        ("the least", &|text| serde_json::to_string(text).unwrap()),
        ("slashes, too", &|text| serde_json::to_string(text).unwrap().replace('/', r"\/")),
        ("a hyphen by number", &|text| serde_json::to_string(text).unwrap().replace('-', r"\u002D")),
        ("everything by number", &|text| format!("\"{}\"", everything(text))),
    ];
    for (first, write) in &writers {
        for (second, write_again) in &writers {
            for levels in 1..4 {
                let inner = write(&format!("a {secret} b"));
                let text = (1..levels).fold(inner, |text, _| write_again(&text));
                let what = format!("{first}, then {second}, {levels} levels: {text}");
                let mut clean = redactor.text(&text).into_owned();
                assert!(json_of(&redactor, &text).is_some(), "{what}");
                for _ in 0..levels {
                    clean = serde_json::from_str(&clean).unwrap_or_else(|error| panic!("{what}: {clean}: {error}"));
                }
                assert_eq!(clean, "a [redacted] b", "{what}");
            }
        }
    }
}

#[test]
fn base64_is_known_in_json_although_its_digits_are_escaped() {
    // Of these bits `/` and `+` are made, also together with those around them.
    let secret = "😀\u{7ff}?\u{7ff}?w\u{7ff}>-s3cr3t-o";
    let redactor = knowing([secret]);
    for (before, after) in ["", "o", "oo"].into_iter().flat_map(|before| ["", "é", "😀"].map(|after| (before, after)))
    {
        let encoded = STANDARD.encode(format!("{before}{secret}{after}"));
        for (digit, escape) in [('/', "/"), ('/', r"\/"), ('+', r"\u002B"), ('+', r"\u002b")] {
            let json = format!("\"Basic {}\"", encoded.replace(digit, escape));
            let clean = redactor.text(&json);
            assert!(clean.contains("[redacted]") && clean.len() < 36, "{json} {clean}");
            serde_json::from_str::<String>(&clean).unwrap_or_else(|error| panic!("{json} {clean}: {error}"));
        }
    }
}

#[test]
fn a_secret_is_removed_from_html_whatever_its_writer_escapes() {
    let redactor = knowing(["a<b>&c\"d'e/f=g"]);
    let table = [
        "a&lt;b&gt;&amp;c&quot;d&#x27;e/f=g",
        "a&lt;b&gt;&amp;c&#34;d&#39;e/f=g",
        "a&lt;b&gt;&amp;c&quot;d&apos;e&#x2F;f&#61;g",
        r"a\u0026lt;b\u0026gt;\u0026amp;c\u0026#34;d\u0026#39;e/f=g",
    ];
    for form in table {
        assert_eq!(redactor.text(&format!("<b>{form}</b>")), "<b>[redacted]</b>", "{form}");
        let json = format!(r#"{{"html":"{form}"}}"#);
        assert_eq!(json_of(&redactor, &json).as_deref(), Some(r#"{"html":"[redacted]"}"#), "{form}");
    }
    assert_eq!(
        redactor.text("&amp &; &#; &#x110000; &unknown; %4 %zz \\"),
        "&amp &; &#; &#x110000; &unknown; %4 %zz \\"
    );
}

#[test]
fn a_secret_is_removed_from_base64_in_lines() {
    let secret = "s3cr3t-t0ken-that-is-long-enough-for-two-lines";
    let redactor = knowing([secret]);
    for (width, end) in [(76, "\n"), (64, "\r\n"), (20, "\n"), (40, "\n    ")] {
        for before in 0..width {
            let environment = format!("{}\nTOKEN={secret}\nPATH=/usr/bin:/bin", "x".repeat(before));
            let encoded = STANDARD.encode(environment);
            let lines: Vec<&str> =
                encoded.as_bytes().chunks(width).map(|line| std::str::from_utf8(line).unwrap()).collect();
            let lines = lines.join(end);
            let clean = redactor.text(&lines).into_owned();
            assert_eq!(clean.matches("[redacted]").count(), 1, "{lines}");
            let (start, behind) = clean.split_once("[redacted]").unwrap();
            assert!(lines.starts_with(start) && lines.ends_with(behind));
            let json = serde_json::to_string(&lines).unwrap();
            assert_eq!(json_of(&redactor, &json).unwrap(), serde_json::to_string(&clean).unwrap());
        }
    }
}

#[test]
fn encodings_beside_a_secret_stay_as_they_are() {
    let redactor = knowing(["s3cr3t-t0ken"]);
    let text = "a%20b&lt;c s3cr3t-t0ken d%20e&gt;f s3cr3t%2Dt0ken&amp;s3cr3t&#45;t0ken%20Ä";
    assert_eq!(redactor.text(text), "a%20b&lt;c [redacted] d%20e&gt;f [redacted]&amp;[redacted]%20Ä");
}

#[test]
fn a_beginning_is_cut_after_its_secrets_were_removed() {
    let redactor = knowing(["s3cr3t-t0ken"]);
    let table = [
        (4, "now "),
        (5, "now [redacted]"),
        (15, "now [redacted]"),
        (16, "now [redacted]"),
        (19, "now [redacted] o"),
        (20, "now [redacted] oé"),
        (99, "now [redacted] oé"),
    ];
    for (length, expected) in table {
        assert_eq!(redactor.beginning("now s3cr3t-t0ken oé", length), expected, "{length}");
    }
    assert_eq!(redactor.beginning("none", 2), "no");
}

#[test]
fn a_secret_has_further_forms_only_where_letters_are_written_in_several_ways() {
    let count = |secret| forms(secret).len();
    assert_eq!([count("s3cr3t-t0ken-0123"), count("s3cr3t&t0ken-0123"), count("s3cr3t+t0ken-0123")], [4, 7, 7]);
}

#[test]
fn a_secret_is_removed_from_base64_wherever_it_begins_there() {
    let redactor = knowing(["s3cr3t-t0ken"]);
    for user in ["", "u", "us", "ana", "bobby"] {
        for tail in ["", "x", "yz", "end"] {
            let texts = ["s3cr3t-t0ken".to_owned(), "\0".repeat(12), "\u{7f}".repeat(12)]
                .map(|secret| format!("{user}:{secret}{tail}"));
            for encode in [|text: &String| STANDARD.encode(text), |text: &String| URL_SAFE_NO_PAD.encode(text)] {
                let [encoded, others @ ..] = texts.each_ref().map(encode);
                let clean = redactor.text(&encoded).into_owned();
                let (start, end) = clean.split_once("[redacted]").unwrap_or_else(|| panic!("{texts:?}: {clean}"));
                // What is left holds no bit of the secret: it is the same around any other text.
                let is_same = |other: &String| other.starts_with(start) && other.ends_with(end);
                assert!(others.iter().all(is_same), "{texts:?}: {clean}");
            }
        }
    }
}

#[test]
fn secrets_that_overlap_are_removed_whole() {
    let redactor = knowing(["hunter2-hunter2", "hunter2-hunter2-longer", "longer-and-longer"]);
    let table = [
        ("hunter2-hunter2-longer hunter2-hunter2", "[redacted] [redacted]"),
        ("a hunter2-hunter2-longer-and-longer b", "a [redacted] b"),
        ("hunter2-hunter2hunter2-hunter2", "[redacted][redacted]"),
        ("hunter2-hunter2-hunter2", "[redacted]"),
        ("hunter2-hunter hunter2-longe", "hunter2-hunter hunter2-longe"),
    ];
    for (text, expected) in table {
        assert_eq!(redactor.text(text), expected);
    }
}

#[test]
fn a_part_of_a_secret_changes_nothing() {
    let secret = "correct-horse-battery-staple";
    let redactor = knowing([secret]);
    for length in 1..secret.len() {
        let (start, end) = secret.split_at(length);
        for part in [start, &format!("{start}#{end}")] {
            assert_eq!(redactor.text(part), part);
        }
    }
}

#[test]
fn short_and_well_known_values_are_not_redacted() {
    for word in ["", "guest", "1234567", "  short  "] {
        assert_eq!(obstacle(word), Some(Obstacle::TooShort), "{word}");
    }
    for word in ["password", "ChangeMe", "postgres", "xxxxxxxxxxxx", "--------"] {
        assert_eq!(obstacle(word), Some(Obstacle::WellKnown), "{word}");
    }
    assert_eq!(obstacle("pa55-words"), None);
    let redactor = knowing(["guest", "password", "00000000"]);
    assert_eq!(redactor.text("guest password 00000000"), "guest password 00000000");
}

#[test]
fn nothing_is_copied_where_there_is_no_secret() {
    for redactor in [Redactor::default(), knowing(["s3cr3t-t0ken"])] {
        assert!(matches!(redactor.text("an ordinary text"), std::borrow::Cow::Borrowed(_)));
        assert_eq!(redactor.bytes(b"an ordinary text"), None);
        assert_eq!(redactor.json(br#"{"an": "ordinary text"}"#), None);
    }
}

#[test]
fn json_keeps_its_numbers_and_its_form() {
    let redactor = knowing(["1234567890123", "line\none-two", "name-of-a-member"]);
    let table = [
        (r#"{"n": 1234567890123, "s": "1234567890123"}"#, r#"{"n": 1234567890123, "s": "[redacted]"}"#),
        (r#"{ "a":"line\none-two" , "b":1.50}"#, r#"{ "a":"[redacted]" , "b":1.50}"#),
        (r#"["x\"1234567890123\"\\"]"#, r#"["x\"[redacted]\"\\"]"#),
        (r#"{"name-of-a-member": true}"#, r#"{"[redacted]": true}"#),
        (r#"{"text": "{\"a\": \"line\\none-two\"}"}"#, r#"{"text": "{\"a\": \"[redacted]\"}"}"#),
        ("no JSON: 1234567890123 \"", "no JSON: [redacted] \""),
    ];
    for (text, expected) in table {
        assert_eq!(json_of(&redactor, text).as_deref(), Some(expected));
    }
    assert_eq!(json_of(&redactor, r#"{"n": 1234567890123}"#), None);

    let mut value = json!({"n": 1_234_567_890_123_u64, "deep": [{"name-of-a-member": "is 1234567890123"}], "b": null});
    redactor.clean_value(&mut value);
    assert_eq!(value, json!({"n": 1_234_567_890_123_u64, "deep": [{"[redacted]": "is [redacted]"}], "b": null}));
}

#[test]
fn every_text_of_a_result_is_cleaned() {
    let secret = "s3cr3t-t0ken";
    let redactor = knowing([secret]);
    let block = ContentBlock {
        kind: "resource".to_owned(),
        text: Some(secret.to_owned()),
        data: Some(STANDARD.encode(format!("PNG {secret} PNG"))),
        mime_type: Some("text/plain".to_owned()),
        uri: Some(format!("http://x/?key={secret}")),
    };
    let program = Program {
        stdout: Some(secret.to_owned()),
        stderr: Some(format!("{secret}\n")),
        exit_code: 1,
        elapsed: Default::default(),
    };
    let mut output = ToolOutput { blocks: vec![block], ..ToolOutput::text(secret) }.of_program(program);
    output.split = Some(Box::new(SplitRule {
        threshold: 1,
        max: 1,
        ttl: Default::default(),
        stem: secret.to_owned(),
        category: "web",
        subject: secret.to_owned(),
    }));
    output.structured = Some(Box::new(json!({"token": secret, "size": 12})));
    output.redact(&redactor);
    insta::assert_debug_snapshot!(output, @r#"
    ToolOutput {
        content: Some(
            "[redacted]",
        ),
        blocks: [
            ContentBlock {
                kind: "resource",
                text: Some(
                    "[redacted]",
                ),
                data: Some(
                    "W3JlZGFjdGVkXQ==",
                ),
                mime_type: Some(
                    "text/plain",
                ),
                uri: Some(
                    "http://x/?key=[redacted]",
                ),
            },
        ],
        is_error: false,
        structured: Some(
            Object {
                "size": Number(12),
                "token": String("[redacted]"),
            },
        ),
        program: Some(
            Program {
                stdout: Some(
                    "[redacted]",
                ),
                stderr: Some(
                    "[redacted]\n",
                ),
                exit_code: 1,
                elapsed: 0ns,
            },
        ),
        split: Some(
            SplitRule {
                threshold: 1,
                max: 1,
                ttl: 0ns,
                stem: "[redacted]",
                category: "web",
                subject: "[redacted]",
            },
        ),
    }
    "#);
    let mut failure = ToolFailure::new(Cause::Failed, format!("refused {secret}")).with_detail(format!("as {secret}"));
    failure.redact(&redactor);
    assert_eq!((&*failure.message, failure.detail.as_deref()), ("refused [redacted]", Some("as [redacted]")));
}

#[test]
fn secrets_of_before_and_those_that_are_fetched_are_removed_too() {
    let redactor = knowing(["first-secret"]);
    let clone = redactor.clone();
    redactor.configure([Secret::new("second-secret")]);
    let learnt = clone.learn(&Secret::new("fetched-token"));
    drop(clone.learn(&Secret::new("fetched-token")));
    assert_eq!(redactor.text("first-secret second-secret fetched-token"), "[redacted] [redacted] [redacted]");
    drop(learnt);
    redactor.configure([]);
    assert_eq!(redactor.text("first-secret second-secret fetched-token"), "[redacted] [redacted] [redacted]");
}

#[test]
fn a_token_is_removed_as_long_as_it_is_in_use_and_forgotten_last() {
    let redactor = Redactor::default();
    let in_use = redactor.learn(&Secret::new("token-in-use"));
    let come_and_go = |numbers: std::ops::Range<usize>| {
        redactor.configure(numbers.map(|number| Secret::new(format!("token-{number:06}"))));
        redactor.configure([]);
    };
    come_and_go(0..MAX_OUTDATED + 1);
    assert_eq!(redactor.text("token-in-use"), "[redacted]");
    drop(in_use);
    come_and_go(2_000..2_000 + MAX_OUTDATED - 1);
    assert_eq!(redactor.text("token-in-use"), "[redacted]");
    // What comes again is as new as any other.
    redactor.configure([Secret::new("token-in-use")]);
    come_and_go(4_000..4_000 + MAX_OUTDATED);
    assert_eq!(redactor.text("token-in-use"), "token-in-use");
}

#[test]
fn the_oldest_outdated_secrets_are_forgotten() {
    let redactor = knowing(["configured-secret"]);
    let token = |number: usize| format!("token-{number:06}");
    redactor.configure((0..MAX_OUTDATED + 2).map(|number| Secret::new(token(number))));
    redactor.configure([Secret::new("configured-secret")]);
    assert_eq!(redactor.text(&token(1)), token(1));
    assert_eq!(redactor.text(&token(2)), "[redacted]");
    let last = token(MAX_OUTDATED + 1);
    assert_eq!(redactor.text(&format!("{last} configured-secret")), "[redacted] [redacted]");
}

#[test]
fn outdated_secrets_take_a_bounded_number_of_bytes() {
    let mut known = Known::default();
    let token = |number: usize| format!("{number:06}{}", "t".repeat(16 * 1024));
    (0..200).for_each(|number| known.remember(token(number)));
    let kept = known.all().map(String::len).sum::<usize>();
    assert!((MAX_OUTDATED_BYTES - 32 * 1024..=MAX_OUTDATED_BYTES).contains(&kept), "{kept}");
    assert_eq!(known.outdated.back(), Some(&token(199)));
    known.remember("l".repeat(2 * MAX_OUTDATED_BYTES));
    assert_eq!(known.all().count(), 1, "one is always kept");
}

#[test]
fn a_very_long_secret_is_removed_as_far_as_it_goes() {
    let long: String =
        (0..200_000_u32).map(|number| char::from(b'a' + (u64::from(number).pow(2) % 23) as u8)).collect();
    let redactor = knowing([&*long]);
    assert_eq!(redactor.text(&format!("<{long}>")), "<[redacted]>");
    let part = &long[..10_000];
    assert_eq!(redactor.text(&format!("<{part}>")), "<[redacted]>");
    assert_eq!(redactor.text(&long[..4000]), long[..4000]);
}

#[test]
fn many_secrets_are_all_removed() {
    let secrets: Vec<String> =
        (0..2_000_u32).map(|number| format!("agent-{number}-{:x}", u64::from(number) * 7_919_317)).collect();
    let redactor = knowing(secrets.iter().map(String::as_str));
    let text = secrets.join(" ");
    assert_eq!(redactor.text(&text), vec!["[redacted]"; secrets.len()].join(" "));
}

#[test]
fn the_longest_of_secrets_with_one_beginning_is_removed() {
    let mut secrets: Vec<String> = (0..300).map(|number| format!("eyJhbGci.{number}")).collect();
    secrets.extend([
        "eyJhbGci".to_owned(),
        "eyJhbGci.7.and-so-on".to_owned(),
        format!("eyJhbGci.{}", "x".repeat(9_000)),
    ]);
    secrets.push(format!("eyJhbGci.{}{}", "x".repeat(6_000), "y".repeat(100)));
    let redactor = knowing(secrets.iter().map(String::as_str));
    for secret in &secrets {
        assert_eq!(redactor.text(&format!("<{secret}>")), "<[redacted]>", "{secret}");
    }
    let table = [
        ("eyJhbGci.7.and-so-o", "[redacted].and-so-o"),
        ("eyJhbGci.299999", "[redacted]999"),
        ("eyJhbGci.~", "[redacted].~"),
        ("eyJhbGci", "[redacted]"),
        ("eyJhbGc", "eyJhbGc"),
    ];
    for (text, expected) in table {
        assert_eq!(redactor.text(text), expected);
    }
}

#[test]
fn many_secrets_with_one_beginning_are_removed_quickly() {
    let token = |number: usize| format!("eyJhbGciOiJIUzI1NiJ9.{number:06}");
    let time = |secrets: usize| {
        let tokens: Vec<String> = (0..secrets).map(token).collect();
        let (redactor, text) = (knowing(tokens.iter().map(String::as_str)), "eyJhbGciOiJIUzI1NiJ9.".repeat(2_000));
        let look = || {
            let begin = Clock::SYSTEM.now();
            assert_eq!(redactor.bytes(text.as_bytes()), None);
            Clock::SYSTEM.since(begin)
        };
        std::iter::repeat_with(look).take(5).min().unwrap()
    };
    let (few, many) = (time(4), time(4_000));
    assert!(many < few * 50, "a thousand times as many secrets took {many:?} instead of {few:?}");
}

#[test]
fn a_repetitive_secret_is_removed_quickly() {
    let redactor = knowing([&*"ab".repeat(2_000)]);
    let text = "ab".repeat(200_000);
    let clean = redactor.text(&text);
    assert!(clean.starts_with("[redacted]") && clean.len() < 10_000, "{}", clean.len());
}

proptest! {
    #[test]
    fn no_text_holds_a_secret_afterwards(
        secrets in prop::collection::vec("[a-c\"\\\\/é]{8,14}", 1..4), parts in prop::collection::vec("[a-c]{0,3}", 1..6)
    ) {
        let redactor = knowing(secrets.iter().map(String::as_str));
        let secrets: Vec<_> = secrets.iter().filter(|secret| obstacle(secret).is_none()).collect();
        let text: String = parts.iter().enumerate()
            .map(|(index, part)| format!("{part}{}", secrets.get(index % 4).map_or("", |secret| secret))).collect();
        let clean = redactor.text(&text).into_owned();
        prop_assert!(secrets.iter().all(|secret| !clean.contains(secret.trim())), "{clean}");
        let value = json!({"a": [text, 7]});
        let written = json_of(&redactor, &value.to_string()).unwrap_or_else(|| value.to_string());
        prop_assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), json!({"a": [clean, 7]}));
    }
}
