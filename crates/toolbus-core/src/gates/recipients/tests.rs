//! Recipients of a call, comparison with the list, and texts of refusals.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const LISTED: [&str; 3] = ["+57 300 111-2233", "(57) 301.444.5566", "120363041234567890@g.us"];
const MAILS: [&str; 2] = ["ana@example.com", "Bob+news@Example.COM"];

fn outbound(compare: Compare, paths: &[&str]) -> Outbound {
    let recipients = paths.iter().map(|path| RecipientPath::parse(path).unwrap()).collect();
    Outbound { channel: "whatsapp".into(), tools: Vec::new(), recipients, compare }
}

/// Verdict on a call with these arguments: `listed`, or the kind of its refusal.
fn verdict(compare: Compare, list: &[&str], paths: &[&str], arguments: &Value) -> &'static str {
    let allowed = AllowedRecipients::new(compare, list).unwrap();
    let checked = allowed.check(&outbound(compare, paths), None, arguments.as_object().unwrap());
    kind(checked)
}

fn kind(checked: Result<(), RecipientRefusal>) -> &'static str {
    match checked.map_err(|refused| refused.reason) {
        Ok(()) => "listed",
        Err(Reason::NotListed(_)) => "stranger",
        Err(Reason::Unreadable(..)) => "unreadable",
        Err(Reason::NoRecipient(_)) => "no recipient",
        Err(Reason::Undeclared(_)) => "undeclared",
    }
}

fn each(compare: Compare, list: &[&str], rows: &[(&str, &str, &str)]) {
    for (what, text, expected) in rows {
        assert_eq!(verdict(compare, list, &["/to"], &json!({"to": text})), *expected, "{what}: {text:?}");
        let behind_a_friend = json!({"to": list[0], "cc": [list[1], text]});
        assert_eq!(
            verdict(compare, list, &["/to", "/cc/*"], &behind_a_friend),
            *expected,
            "{what}: {text:?} in a list"
        );
    }
}

#[test]
fn telephone_numbers_are_compared_by_their_digits_and_by_nothing_else() {
    each(
        Compare::Digits,
        &LISTED,
        &[
            ("as it is listed", "+57 300 111-2233", "listed"),
            ("digits alone", "573001112233", "listed"),
            ("with a plus", "+573001112233", "listed"),
            ("written by people", "(57) 300.111.22-33", "listed"),
            ("a user's id", "573001112233@s.whatsapp.net", "listed"),
            ("an older id of a user", "573001112233@c.us", "listed"),
            ("a listed group", "120363041234567890@g.us", "listed"),
            ("a stranger", "+573009998877", "stranger"),
            ("a prefix of a listed number", "57300111223", "stranger"),
            ("a listed number and one digit more", "5730011122330", "stranger"),
            ("a stranger's id", "573009998877@s.whatsapp.net", "stranger"),
            ("a national number", "3001112233", "stranger"),
            ("a trunk zero", "+57 (0) 300 111 2233", "stranger"),
            ("a group that is not listed", "120363099999999999@g.us", "stranger"),
            ("the founder of a group", "573001112233-1500000000@g.us", "stranger"),
            ("a listed number posing as a group", "573001112233@g.us", "stranger"),
            ("nothing", "", "unreadable"),
            ("a space", " ", "unreadable"),
            ("no digit", "+", "unreadable"),
            ("separators alone", "(-)", "unreadable"),
            ("two, behind a comma", "+573001112233,+573009998877", "unreadable"),
            ("two, behind a semicolon", "573001112233;573009998877", "unreadable"),
            ("two, behind a space", "573001112233 573009998877", "unreadable"),
            ("two, behind a new line", "573001112233\n573009998877", "unreadable"),
            ("two, behind a tab", "573001112233\t573009998877", "unreadable"),
            ("two, behind a slash", "573001112233/573009998877", "unreadable"),
            ("two pluses", "++573001112233", "unreadable"),
            ("a plus in the middle", "57+3001112233", "unreadable"),
            ("a plus at the end", "573001112233+", "unreadable"),
            ("a plus in parentheses", "(+57)3001112233", "unreadable"),
            ("a space before the plus", " +573001112233", "unreadable"),
            ("a space at the end", "573001112233 ", "unreadable"),
            ("another way to write the plus", "00573001112233", "unreadable"),
            ("both ways to write the plus", "+00573001112233", "unreadable"),
            ("an international number that begins with zero", "+0573001112233", "unreadable"),
            ("an extension in words", "+573001112233 ext 9", "unreadable"),
            ("an extension of RFC 3966", "+573001112233;ext=9", "unreadable"),
            ("an extension after an x", "573001112233x9", "unreadable"),
            ("tones after a pause", "573001112233,,9", "unreadable"),
            ("tones after a hash", "573001112233#9", "unreadable"),
            ("a service code", "*21*573009998877#", "unreadable"),
            ("a scheme", "tel:+573001112233", "unreadable"),
            ("Arabic digits", "٥٧٣٠٠١١١٢٢٣٣", "unreadable"),
            ("one Arabic digit among others", "57300111223٣", "unreadable"),
            ("full-width digits", "５７３００１１１２２３３", "unreadable"),
            ("superscript digits", "57300111223³", "unreadable"),
            ("a full-width plus", "＋573001112233", "unreadable"),
            ("a space that does not break", "57\u{a0}3001112233", "unreadable"),
            ("a space without width", "57300\u{200b}1112233", "unreadable"),
            ("reversed text", "\u{202e}573001112233", "unreadable"),
            ("a dash that is no hyphen", "57–3001112233", "unreadable"),
            ("a NUL", "573001112233\0", "unreadable"),
            ("a display name", "Ana <573001112233>", "unreadable"),
            ("an id of a host in capitals", "573001112233@S.WHATSAPP.NET", "unreadable"),
            ("an unknown host", "573001112233@evil.example", "unreadable"),
            ("a host behind a known one", "573001112233@s.whatsapp.net.evil.example", "unreadable"),
            ("two hosts", "573001112233@s.whatsapp.net@evil.example", "unreadable"),
            ("a broadcast", "573001112233@broadcast", "unreadable"),
            ("a hidden id", "573001112233@lid", "unreadable"),
            ("a device of a user", "573001112233:12@s.whatsapp.net", "unreadable"),
            ("an id with a plus", "+573001112233@s.whatsapp.net", "unreadable"),
            ("an id with separators", "57 3001112233@s.whatsapp.net", "unreadable"),
            ("an id without a number", "@s.whatsapp.net", "unreadable"),
            ("a group without a number", "@g.us", "unreadable"),
            ("a group and a number", "573001112233,120363041234567890@g.us", "unreadable"),
            ("more digits than a number has", "5730011122335730", "unreadable"),
        ],
    );
}

#[test]
fn addresses_of_mail_are_compared_as_one_plain_address() {
    each(
        Compare::Email,
        &MAILS,
        &[
            ("as it is listed", "ana@example.com", "listed"),
            ("a domain in capitals", "ana@EXAMPLE.com", "listed"),
            ("a tag that is listed", "Bob+news@example.com", "listed"),
            ("a local part in capitals", "Ana@example.com", "stranger"),
            ("a tag", "ana+evil@example.com", "stranger"),
            ("a listed tag left out", "Bob@example.com", "stranger"),
            ("a domain below", "ana@mail.example.com", "stranger"),
            ("a domain that goes on", "ana@example.com.evil.example", "stranger"),
            ("a domain that begins so", "ana@example.co", "stranger"),
            ("a route with a percent sign", "ana%evil.example@example.com", "stranger"),
            ("a route with a bang", "evil.example!ana@example.com", "stranger"),
            ("a domain in punycode", "ana@xn--exmple-cua.com", "stranger"),
            ("nothing", "", "unreadable"),
            ("no domain", "ana@", "unreadable"),
            ("no local part", "@example.com", "unreadable"),
            ("no at", "example.com", "unreadable"),
            ("two, behind a comma", "ana@example.com,eve@evil.example", "unreadable"),
            ("two, behind a semicolon", "ana@example.com;eve@evil.example", "unreadable"),
            ("two, behind a space", "ana@example.com eve@evil.example", "unreadable"),
            ("a header behind a new line", "ana@example.com\r\nBcc: eve@evil.example", "unreadable"),
            ("two in brackets", "<ana@example.com>, eve@evil.example", "unreadable"),
            ("brackets", "<ana@example.com>", "unreadable"),
            ("a display name", "Ana <ana@example.com>", "unreadable"),
            ("an address as display name", "ana@example.com <eve@evil.example>", "unreadable"),
            ("an address as quoted name", "\"ana@example.com\" <eve@evil.example>", "unreadable"),
            ("an address as comment", "eve@evil.example (ana@example.com)", "unreadable"),
            ("a comment", "ana(eve@evil.example)@example.com", "unreadable"),
            ("a quoted local part", "\"ana\"@example.com", "unreadable"),
            ("two ats", "ana@example.com@evil.example", "unreadable"),
            ("a source route", "@evil.example:ana@example.com", "unreadable"),
            ("a group", "friends:ana@example.com;", "unreadable"),
            ("a scheme", "mailto:ana@example.com", "unreadable"),
            ("a scheme with copies", "mailto:ana@example.com?cc=eve@evil.example", "unreadable"),
            ("a query", "ana@example.com?bcc=eve@evil.example", "unreadable"),
            ("an escaped at", "ana%40example.com", "unreadable"),
            ("an encoded word", "=?utf-8?q?ana?= <ana@example.com>", "unreadable"),
            ("a Cyrillic letter in front", "аna@example.com", "unreadable"),
            ("a Cyrillic letter in the domain", "ana@exаmple.com", "unreadable"),
            ("a full-width at", "ana＠example.com", "unreadable"),
            ("a full-width dot", "ana@example．com", "unreadable"),
            ("a letter whose lower case is ASCII", "ana@example.\u{212a}om", "unreadable"),
            ("a dot at the end", "ana@example.com.", "unreadable"),
            ("two dots", "ana@example..com", "unreadable"),
            ("a dot in front", ".ana@example.com", "unreadable"),
            ("an address of a machine", "ana@[127.0.0.1]", "unreadable"),
            ("a space around", " ana@example.com", "unreadable"),
            ("a NUL", "ana@example.com\0", "unreadable"),
        ],
    );
}

#[test]
fn other_recipients_are_compared_character_by_character() {
    each(
        Compare::Exact,
        &["-1001234", "Straße"],
        &[
            ("as it is listed", "-1001234", "listed"),
            ("beyond ASCII", "Straße", "listed"),
            ("without its sign", "1001234", "stranger"),
            ("another case", "straße", "stranger"),
            ("decomposed", "Strass\u{65}", "stranger"),
            ("a zero in front", "-01001234", "stranger"),
            ("two, behind a comma", "-1001234,-999", "stranger"),
            ("a character without width", "-1001234\u{200b}", "stranger"),
            ("a space around", "-1001234 ", "unreadable"),
            ("a new line", "-1001234\n-999", "unreadable"),
            ("nothing", "", "unreadable"),
        ],
    );
}

#[test]
fn recipients_beside_a_listed_one_are_checked_too() {
    let (friend, stranger) = ("+573001112233", "+573009998877");
    let table = [
        ("one friend", json!({"to": friend}), "listed"),
        ("friends everywhere", json!({"to": friend, "cc": [friend, friend]}), "listed"),
        ("friends in copy alone", json!({"cc": [friend]}), "listed"),
        ("an empty list of copies", json!({"to": friend, "cc": []}), "listed"),
        ("other arguments", json!({"to": friend, "text": stranger}), "listed"),
        ("a stranger in copy", json!({"to": friend, "cc": [friend, stranger]}), "stranger"),
        ("a stranger first", json!({"to": stranger, "cc": [friend]}), "stranger"),
        ("no argument", json!({}), "no recipient"),
        ("another argument", json!({"recipient": friend}), "no recipient"),
        ("another case of the argument", json!({"To": friend}), "no recipient"),
        ("an empty list of copies alone", json!({"cc": []}), "no recipient"),
        ("a number", json!({"to": 573_001_112_233_u64}), "listed"),
        ("the number of a stranger", json!({"to": 573_009_998_877_u64}), "stranger"),
        ("a fraction", json!({"to": 573_001_112_233.0}), "unreadable"),
        ("a truth", json!({"to": true}), "unreadable"),
        ("null", json!({"to": null}), "unreadable"),
        ("null in copy", json!({"to": friend, "cc": null}), "unreadable"),
        ("null among the copies", json!({"to": friend, "cc": [friend, null]}), "unreadable"),
        ("a list where one is expected", json!({"to": [friend]}), "unreadable"),
        ("one where a list is expected", json!({"to": friend, "cc": friend}), "unreadable"),
        ("an object where one is expected", json!({"to": {"number": friend}}), "unreadable"),
        ("an object where a list is expected", json!({"to": friend, "cc": {"0": friend}}), "unreadable"),
        ("a list in a list", json!({"to": friend, "cc": [[friend]]}), "unreadable"),
        ("an object in a list", json!({"to": friend, "cc": [{"number": friend}]}), "unreadable"),
        ("a number in a list", json!({"to": friend, "cc": [573_001_112_233_u64]}), "listed"),
        ("an object with a field too many", json!({"to": friend, "who": {"number": [stranger]}}), "unreadable"),
    ];
    for (what, arguments, expected) in table {
        let found = verdict(Compare::Digits, &LISTED, &["/to", "/cc/*", "/who/number"], &arguments);
        assert_eq!(found, expected, "{what}: {arguments}");
    }
}

#[test]
fn an_object_without_a_recipient_is_refused() {
    let friend = "+573001112233";
    let table = [
        ("each element names one", json!({"to": [{"number": friend}, {"id": friend}]}), "listed"),
        ("an element of another kind", json!({"to": [{"number": friend}, {"phone": "x"}]}), "no recipient"),
        ("an element without fields", json!({"to": [{"number": friend}, {}]}), "no recipient"),
        ("no element", json!({"to": [], "who": {"number": friend}}), "listed"),
        ("an object of another kind", json!({"to": [{"number": friend}], "who": {"phone": "x"}}), "no recipient"),
        ("an object with its recipients", json!({"who": {"number": friend, "cc": [{"number": friend}]}}), "listed"),
        ("an object with no copies", json!({"who": {"number": friend, "cc": []}}), "listed"),
        ("an object within that has none", json!({"who": {"number": friend, "cc": [{"phone": "x"}]}}), "no recipient"),
    ];
    for (what, arguments, expected) in table {
        let paths = ["/to/*/number", "/to/*/id", "/who/number", "/who/cc/*/number"];
        assert_eq!(verdict(Compare::Digits, &LISTED, &paths, &arguments), expected, "{what}: {arguments}");
    }
}

#[test]
fn a_field_beside_a_recipient_that_the_schema_does_not_declare_is_refused() {
    let friend = LISTED[0];
    let person = json!({"properties": {"number": {}, "name": {}, "more": {}}});
    let schema = json!({"properties": {"who": person, "to": {"items": person}, "text": {}}});
    let allowed = AllowedRecipients::new(Compare::Digits, &LISTED).unwrap();
    let outbound = outbound(Compare::Digits, &["/who/number", "/to/*/number", "/to/*/cc/*/number"]);
    let rows = [
        ("a declared field", json!({"who": {"number": friend, "name": "x"}}), "listed"),
        ("a declared field in an element", json!({"to": [{"number": friend, "name": "x"}]}), "listed"),
        (
            "fields of a declared field",
            json!({"who": {"number": friend, "more": {"x": 1}}, "text": {"y": 1}}),
            "listed",
        ),
        ("a field that a path declares", json!({"to": [{"number": friend, "cc": [{"number": friend}]}]}), "listed"),
        ("another name", json!({"who": {"number": friend, "alsoTo": "x"}}), "undeclared"),
        ("another case", json!({"who": {"number": friend, "Number": "x"}}), "undeclared"),
        ("a list in its name", json!({"who": {"number": friend, "number[]": "x"}}), "undeclared"),
        ("a field of an argument", json!({"who": {"number": friend, "text": "x"}}), "undeclared"),
        ("in the last element", json!({"to": [{"number": friend}, {"number": friend, "alsoTo": "x"}]}), "undeclared"),
        (
            "beside a path's own field",
            json!({"to": [{"number": friend, "cc": [{"number": friend, "name": "x"}]}]}),
            "undeclared",
        ),
    ];
    for (what, arguments, expected) in rows {
        let checked = check(&outbound, &allowed, Some(&schema), |_| false, arguments.as_object().unwrap());
        assert_eq!(kind(checked), expected, "{what}: {arguments}");
    }
}

#[test]
fn an_empty_list_allows_no_recipient() {
    for compare in [Compare::Digits, Compare::Email, Compare::Exact] {
        assert_ne!(verdict(compare, &[], &["/to"], &json!({"to": "573001112233"})), "listed");
    }
}

#[test]
fn a_list_counts_its_recipients_once_however_they_are_written() {
    let count = |list: &[&str]| AllowedRecipients::new(Compare::Email, list).unwrap().count();
    assert_eq!((count(&[]), count(&MAILS), count(&["ana@example.com", "ana@Example.com"])), (0, 2, 1));
}

#[test]
fn a_refusal_names_the_path_and_nothing_of_the_list_or_the_value() {
    let allowed = AllowedRecipients::new(Compare::Digits, &LISTED).unwrap();
    let refusal = |paths: &[&str], arguments: Value| {
        let refusal = allowed
            .check(&outbound(Compare::Digits, paths), None, arguments.as_object().unwrap())
            .unwrap_err()
            .to_string();
        assert!(!refusal.contains("573001112233") && !refusal.contains("999"), "{refusal}");
        refusal
    };
    let texts = [
        refusal(&["/to"], json!({"to": "+99999999"})),
        refusal(&["/to", "/cc/*"], json!({"to": LISTED[0], "cc": ["999,999"]})),
        refusal(&["/to"], json!({})),
        refusal(&["/a", "/b/*", "/c"], json!({})),
        refusal(&["/a", "/b/*", "/c", "/d"], json!({})),
    ];
    insta::assert_snapshot!(texts.join("\n"), @"
The recipient at '/to' is not in the list of those that this agent may address on whatsapp.
The value at '/cc/*' cannot be compared with the list of those that this agent may address on whatsapp: expected one telephone number in digits, such as '+57 300 111 2233', or one WhatsApp id.
The call names no recipient on whatsapp: expected one at '/to'.
The call names no recipient on whatsapp: expected one at '/a' or '/b/*' or '/c'.
The call names no recipient on whatsapp: expected one at '/a' or '/b/*' or '/c' or elsewhere.
");
}

#[test]
fn a_refusal_is_bounded() {
    let allowed = AllowedRecipients::new(Compare::Email, &MAILS).unwrap();
    let longest = format!("/{}", "x".repeat(255));
    let mut outbound = outbound(Compare::Email, &[longest.as_str(); 64]);
    outbound.channel = "c".repeat(10_000).into();
    let refusal = allowed.check(&outbound, None, &Map::new()).unwrap_err().to_string();
    assert!(refusal.len() < 1_000, "{}", refusal.len());
}

#[test]
fn a_list_with_an_entry_that_is_no_recipient_is_refused_when_read() {
    let long = "9".repeat(10_000);
    let rows = [
        (Compare::Digits, ""),
        (Compare::Digits, "0057 300"),
        (Compare::Digits, "573001112233@example.com"),
        (Compare::Digits, &long),
        (Compare::Email, "*@example.com"),
        (Compare::Email, "example.com"),
        (Compare::Exact, "a\nb"),
    ];
    let texts = rows.map(|(compare, text)| match AllowedRecipients::new(compare, &[text]) {
        Ok(_) => format!("`{text}` is a recipient"),
        Err(error) => error.to_string(),
    });
    insta::assert_snapshot!(texts.join("\n"), @r"
`` is no recipient; expected one telephone number in digits, such as '+57 300 111 2233', or one WhatsApp id
`0057 300` is no recipient; expected one telephone number in digits, such as '+57 300 111 2233', or one WhatsApp id
`573001112233@example.com` is no recipient; expected one telephone number in digits, such as '+57 300 111 2233', or one WhatsApp id
`9999999999999999999999999999999999999999999999999999999999999999…` is no recipient; expected one telephone number in digits, such as '+57 300 111 2233', or one WhatsApp id
`*@example.com` is no recipient; expected one plain address in ASCII, such as 'ana@example.com'
`example.com` is no recipient; expected one plain address in ASCII, such as 'ana@example.com'
`a\nb` is no recipient; expected one text without control characters and without spaces around it
");
}

#[test]
fn a_recipient_has_1024_bytes_at_the_most() {
    let listed = |length| AllowedRecipients::new(Compare::Exact, &["x".repeat(length)]).is_ok();
    assert_eq!([1, 1024, 1025, 2000].map(listed), [true, true, false, false]);
}

/// Everything that stands at a path, found without the code under test; `None` for what is no text.
fn everything<'a>(path: &str, arguments: &'a Value) -> Vec<Option<&'a str>> {
    let mut values = vec![arguments];
    for step in path.split('/').skip(1) {
        let mut below = Vec::new();
        for value in values {
            match (step, value) {
                ("*", Value::Array(elements)) => below.extend(elements),
                (key, Value::Object(object)) if key != "*" => below.extend(object.get(key)),
                _ => return vec![None],
            }
        }
        values = below;
    }
    values.into_iter().map(Value::as_str).collect()
}

fn recipient() -> impl Strategy<Value = String> {
    let close_to_listed = "[+ ]?57[ -.]?300(111|222)2233(@c\\.us|@g\\.us|,| |;ext=1)?";
    let listed = prop_oneof![Just("573001112233"), Just("+57 300 111-2233"), Just("573014445566@c.us")];
    prop_oneof![3 => listed.prop_map(str::to_owned), 1 => close_to_listed, 1 => ".{0,6}"]
}

fn arguments() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![6 => recipient().prop_map(Value::from), 1 => Just(Value::Null), 1 => any::<u64>().prop_map(Value::from)];
    let value = leaf.prop_recursive(3, 12, 3, |inner| {
        let list = proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from);
        let object = proptest::collection::btree_map("(to|cc|x)", inner, 0..3);
        prop_oneof![list, object.prop_map(|fields| Value::Object(fields.into_iter().collect()))]
    });
    proptest::collection::btree_map("(to|cc|x)", value, 0..4)
        .prop_map(|fields| Value::Object(fields.into_iter().collect()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn accepted_arguments_name_at_least_one_recipient_and_only_listed_ones(arguments in arguments()) {
        let paths = ["/to", "/cc/*", "/x/to", "/x/cc/*"];
        let found: Vec<Option<&str>> = paths.iter().flat_map(|path| everything(path, &arguments)).collect();
        let plain = |text: &str| text.replace("@c.us", "").replace(['+', ' ', '-', '.', '(', ')'], "");
        let is_listed = |text: &Option<&str>| text.is_some_and(|text| ["573001112233", "573014445566"].contains(&&*plain(text)));
        let verdict = verdict(Compare::Digits, &LISTED[..2], &paths, &arguments);
        if verdict == "listed" {
            prop_assert!(!found.is_empty() && found.iter().all(is_listed), "{:?}", found);
        } else {
            prop_assert!(verdict == "no recipient" || !found.is_empty(), "{verdict}");
        }
    }
}
