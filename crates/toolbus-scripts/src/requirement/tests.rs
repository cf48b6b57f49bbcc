use proptest::prelude::*;

use super::*;

fn refusal(text: &str) -> String {
    Requirement::parse(text).expect_err(text).to_string()
}

#[test]
fn a_requirement_is_normalised() {
    let table = [
        ("numpy", "numpy"),
        ("  NumPy ", "numpy"),
        ("Foo._-bar", "foo-bar"),
        ("a", "a"),
        ("2to3", "2to3"),
        ("requests==2.31.0", "requests==2.31.0"),
        ("requests == 2.31.0", "requests==2.31.0"),
        ("requests >=2, <3", "requests<3,>=2"),
        ("requests<3,>=2", "requests<3,>=2"),
        ("a>=1,>=1", "a>=1"),
        ("a~=1.4.2", "a~=1.4.2"),
        ("a!=1.5.*", "a!=1.5.*"),
        ("a==1.*", "a==1.*"),
        ("a<=2", "a<=2"),
        ("a>1", "a>1"),
        ("a<1", "a<1"),
        ("requests[Socks, security]", "requests[security,socks]"),
        ("requests[socks,socks]>=2", "requests[socks]>=2"),
        ("requests[]", "requests"),
        ("a==v1.0", "a==1.0"),
        ("a==1!2.0", "a==1!2.0"),
        ("a==0!2.0", "a==2.0"),
        ("a==01.002", "a==1.2"),
        ("a==1.0Alpha1", "a==1.0a1"),
        ("a==1.0-beta.2", "a==1.0b2"),
        ("a==1.0.preview", "a==1.0rc0"),
        ("a==1.0c3", "a==1.0rc3"),
        ("a==1.0-1", "a==1.0.post1"),
        ("a==1.0.rev4", "a==1.0.post4"),
        ("a==1.0_DEV5", "a==1.0.dev5"),
        ("a==1.0rc1.post2.dev3", "a==1.0rc1.post2.dev3"),
        ("a==1.0+Ubuntu-1", "a==1.0+ubuntu.1"),
    ];
    for (text, expected) in table {
        let requirement = Requirement::parse(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(requirement.as_str(), expected, "{text}");
        assert_eq!(Requirement::parse(expected).as_ref(), Ok(&requirement), "what is normal stays so");
    }
}

#[test]
fn a_requirement_has_a_name_and_may_be_pinned() {
    let table = [
        ("numpy", "numpy", false),
        ("Re_quests[socks]>=2", "re-quests", false),
        ("a==1.0", "a", true),
        ("a[b]==1.0", "a", true),
        ("a==1.*", "a", false),
        ("a==1.0,!=1.0.post1", "a", false),
        ("a~=1.0", "a", false),
    ];
    for (text, name, is_pinned) in table {
        let requirement = Requirement::parse(text).unwrap();
        assert_eq!((requirement.name(), requirement.is_pinned()), (name, is_pinned), "{text}");
    }
}

#[test]
fn text_that_pip_reads_as_an_option_or_address_is_refused() {
    let table = [
        ("", "is empty"),
        ("   ", "is empty"),
        ("-e .", "is an option"),
        ("-e", "is an option"),
        ("--index-url=https://evil.example", "is an option"),
        (" --pre", "is an option"),
        ("-r requirements.txt", "is an option"),
        ("pkg @ https://evil.example/p.whl", "is a URL"),
        ("pkg@file:///etc/passwd", "is a URL"),
        ("https://evil.example/p.whl", "is a URL"),
        ("git+https://evil.example/p", "is a URL"),
        ("git+ssh", "is a URL"),
        ("c:\\p", "is a URL"),
        ("../x", "is a path"),
        ("./x", "is a path"),
        (".", "is a path"),
        ("..", "is a path"),
        ("~", "is a path"),
        ("/etc/passwd", "is a path"),
        ("a/b", "is a path"),
        ("a\\b", "is a path"),
        ("x.whl", "is a path"),
        ("x-1.0.tar.gz", "is a path"),
        ("x.ZIP", "is a path"),
        ("a==1.0+x.zip", "is a path"),
        ("a==1.0+x-zip", "is a path"),
        ("numpy; python_version>'3'", "has an environment marker"),
        ("numpy;", "has an environment marker"),
    ];
    for (text, expected) in table {
        let refusal = refusal(text);
        assert!(refusal.contains(expected), "{text}: {refusal}");
    }
}

#[test]
fn an_unreadable_requirement_is_refused_with_advice() {
    let table = [
        ("nu\u{200b}mpy", "has characters"),
        ("numpy\n--pre", "has characters"),
        ("num\tpy", "has characters"),
        ("numpy\0", "has characters"),
        ("ｎumpy", "has characters"),
        ("rëquests", "has characters"),
        ("num\u{a0}py", "has characters"),
        ("_a", "does not begin with the name"),
        ("a-", "does not begin with the name"),
        ("==1.0", "does not begin with the name"),
        ("*", "does not begin with the name"),
        ("'a'", "does not begin with the name"),
        ("$(id)", "does not begin with the name"),
        ("`id`", "does not begin with the name"),
        ("a[", "has extras"),
        ("a[b", "has extras"),
        ("a[b,]", "has extras"),
        ("a[,b]", "has extras"),
        ("a[b c]", "has extras"),
        ("a[-]", "has extras"),
        ("a b", "something after the name"),
        ("a --pre", "something after the name"),
        ("a && id", "something after the name"),
        ("a (>=1)", "something after the name"),
        ("a=1", "something after the name"),
        ("a==1,", "something after the name"),
        ("a==1,,<2", "something after the name"),
        ("a,b", "something after the name"),
        ("a==1 <2", "something after the name"),
        ("a==1 --pre", "something after the name"),
        ("a=== 1.0", "uses `===`"),
        ("a==", "has a version"),
        ("a==x", "has a version"),
        ("a==1.x", "has a version"),
        ("a==1.", "has a version"),
        ("a==1..2", "has a version"),
        ("a==1.0+", "has a version"),
        ("a==1.0+x..y", "has a version"),
        ("a==1*", "has a version"),
        ("a==*", "has a version"),
        ("a==1!", "has a version"),
        ("a==1.0foo", "has a version"),
        ("a==1.0$(id)", "has a version"),
        ("a>=1.*", "uses `.*`"),
        ("a==1.0rc1.*", "uses `.*`"),
        ("a==1.0+x.*", "uses `.*`"),
        ("a~=1", "uses `~=`"),
        ("a>=1.0+x", "compares with a local version"),
    ];
    for (text, expected) in table {
        let refusal = refusal(text);
        assert!(refusal.contains(expected), "{text:?}: {refusal}");
    }
    let long = format!("a=={}", "1".repeat(198));
    assert!(refusal(&long).ends_with("is longer than 200 bytes, which no package needs"));
    assert!(Requirement::parse(&long[..200]).is_ok());
}

#[test]
fn a_refusal_shows_a_short_and_harmless_beginning() {
    assert_eq!(
        refusal("a\u{1b}[31m\n"),
        "`a\\u{1b}[31m\\n` has characters that no package has; use ASCII letters, digits and punctuation"
    );
    let refusal = refusal(&format!("-{}", "x".repeat(190)));
    assert!(refusal.starts_with("`-xxx") && refusal.contains("xxx...` is an option"), "{refusal}");
    assert!(refusal.len() < 200, "{refusal}");
}

#[test]
fn equal_packages_of_a_call_are_taken_once_and_different_ones_refused() {
    let names = |texts: &[&str]| Requirement::parse_all(texts).map(|all| all.iter().map(ToString::to_string).collect());
    assert_eq!(names(&["b", "a", "B"]), Ok(vec!["b".to_owned(), "a".to_owned()]));
    assert_eq!(names(&[]), Ok(vec![]));
    let refused = |texts: &[&str]| Requirement::parse_all(texts).unwrap_err().to_string();
    assert_eq!(
        refused(&["a==1.0", "A==2.0"]),
        "package `a` is asked for twice, as `a==1.0` and `a==2.0`; ask for it once"
    );
    assert_eq!(refused(&["a", "-e"]), "package `-e` is an option of pip; give names and versions of packages alone");
    assert!(Requirement::parse_all(&["a"; 20]).is_ok());
    assert_eq!(refused(&["a"; 21]), "21 packages are too many; a call may have 20");
}

/// Whatever parses is one argument that pip takes for a package of its index.
fn check_safe(text: &str) {
    if let Ok(requirement) = Requirement::parse(text) {
        let argument = requirement.as_str();
        assert!(argument.starts_with(|c: char| c.is_ascii_alphanumeric()), "{argument}");
        let is_safe = |c: char| c.is_ascii_alphanumeric() || "._-[],=!<>~*+".contains(c);
        assert!(argument.chars().all(is_safe), "{argument}");
        assert!(!ARCHIVES.iter().any(|ending| argument.ends_with(ending)), "{argument}");
        assert_eq!(Requirement::parse(argument).unwrap(), requirement);
    }
}

proptest! {
    #[test]
    fn any_parsed_text_is_safe_as_one_argument(text in r"\PC{0,40}") {
        check_safe(&text);
    }

    #[test]
    fn any_parsed_text_like_a_requirement_is_safe_as_one_argument(
        text in r"[ .a-]{0,2}[a-zA-Z0-9._-]{1,6}(\[[a-z,. -]{0,6}\])?(([=!<>~]{1,3}| |,)[ v]?[0-9!.*+abcrcdevpost_-]{0,8}){0,3}[ ;@/:whlzip.]{0,4}"
    ) {
        check_safe(&text);
    }

    #[test]
    fn a_requirement_of_the_grammar_is_accepted(
        text in r"[a-z0-9]([a-z0-9._-]{0,4}[a-z0-9])?(\[[a-z0-9]{1,3}(,[a-z]{1,3}){0,2}\])?((==|!=|<=|>=|<|>)[0-9]{1,3}(\.[0-9]{1,3}){0,3}((a|b|rc)[0-9])?(\.post[0-9])?(\.dev[0-9])?)?"
    ) {
        let requirement = Requirement::parse(&text);
        prop_assert!(requirement.is_ok(), "{text}: {requirement:?}");
    }
}
