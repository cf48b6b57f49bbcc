//! Scripts that are odd texts.

use toolbus_sandbox::{Ending, Stop};

use crate::fixture::{both, script, text, told, warm};

async fn assert_says(source: &str, stdout: &str) {
    for outcomes in [both(script(source)).await, warm(script(source)).await] {
        for outcome in outcomes {
            assert_eq!(told(&outcome), (Ending::Exited(0), stdout.to_owned(), String::new()), "{source:?}");
        }
    }
}

async fn error_of(source: &str) -> String {
    let [full, less] = both(script(source)).await;
    assert_eq!(told(&full), told(&less));
    assert_eq!((full.ending, text(&full.stdout)), (Ending::Exited(1), String::new()));
    text(&full.stderr)
}

#[tokio::test]
async fn a_script_of_nothing_or_of_remarks_does_nothing() {
    for source in ["", "# a remark", "\n\n", "'''a text'''"] {
        assert_says(source, "").await;
    }
}

#[tokio::test]
async fn a_byte_order_mark_and_any_line_endings_are_as_good_as_none() {
    assert_says("\u{feff}print('mark')", "mark\n").await;
    assert_says("if True:\r\n    print('crlf')\r\n", "crlf\n").await;
    assert_says("if True:\r    print('cr')\r", "cr\n").await;
    assert_says("print('no end of line')", "no end of line\n").await;
}

#[tokio::test]
async fn a_declared_encoding_is_used() {
    // The bytes are those of UTF-8, read as the script says.
    assert_says("# -*- coding: latin-1 -*-\nprint(ascii('ä'))", "'\\xc3\\xa4'\n").await;
    assert_says("# coding: utf-8\nprint('ä€😀')", "ä€😀\n").await;
}

#[tokio::test]
async fn an_encoding_that_does_not_fit_is_an_error_of_the_script() {
    insta::assert_snapshot!(error_of("# coding: no-such\nprint(1)").await, @r#"
      File "script.py", line 0
    SyntaxError: unknown encoding: no-such
    "#);
    assert!(error_of("# coding: utf-16\nprint(1)").await.contains("Error"));
}

#[tokio::test]
async fn a_nul_in_a_script_is_an_error_of_the_script() {
    let error = error_of("print('a')\0print('b')").await;
    insta::assert_snapshot!(error, @"ValueError: source code string cannot contain null bytes");
}

#[tokio::test]
async fn an_error_of_syntax_names_the_script_and_the_line() {
    insta::assert_snapshot!(error_of("print('fine')\nprint('not'\n").await, @r#"
      File "script.py", line 2
        print('not'
             ^
    SyntaxError: '(' was never closed
    "#);
}

#[tokio::test]
async fn a_script_of_a_megabyte_runs() {
    let source = format!("data = '''{}'''\nprint(len(data))", "x".repeat(1 << 20));
    assert_says(&source, "1048576\n").await;
}

#[tokio::test]
async fn a_script_that_nests_too_deep_for_a_parser_is_refused_or_ended() {
    let source = format!("{}0{}", "(".repeat(100_000), ")".repeat(100_000));
    for source in [source, format!("{}0", "-".repeat(1_000_000))] {
        for outcome in both(script(source)).await {
            // The line is in the message, and may be more than is kept.
            let is_told = ["script.py", "MemoryError"].iter().any(|word| text(&outcome.stderr).contains(word));
            assert!(
                matches!(outcome.ending, Ending::Exited(1) | Ending::Stopped(Stop::Output)) && is_told,
                "{outcome:?}"
            );
        }
    }
}
