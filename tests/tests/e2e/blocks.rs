//! The blocks of code of a document, and what is to be done with each.

/// Reason why a block is not run. A document names one of these in a comment before the block.
const REASONS: [&str; 5] = [
    "it changes this machine",
    "it names what readers have",
    "it runs the tests",
    "it takes minutes",
    "needs a container engine",
];

/// Texts that `/readyz` shows once a daemon is ready, and once one that cannot become so has seen why.
const READY: &str = r#""ready":true"#;
const BLOCKED: &str = r#""detail":""#;

/// Action that a document has a test perform with a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Runs to its end, which must be success.
    Script(String),
    /// A daemon that runs until the document ends or another replaces it; it has started when `/readyz` shows a text.
    Daemon { command: String, shows: &'static str },
    /// Commands, each with what it prints; `…` stands for any text of a line, and alone on a line for any lines.
    Commands(Vec<(String, String)>),
    /// A configuration that `toolbus check` accepts.
    Toml(String),
    /// One JSON value.
    Json(String),
    /// A file below `examples/`.
    Python(String),
    /// A figure, or a block that is not run, with its reason.
    Nothing,
}

/// A block, and the line of the document on which it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) line: usize,
    pub(crate) kind: Kind,
}

/// The blocks of a document.
///
/// # Panics
///
/// When a block is in no known language, or the comment before it has no known meaning.
pub(crate) fn blocks(document: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut before = "";
    let mut lines = document.lines().zip(1..);
    while let Some((text, line)) = lines.next() {
        let Some(language) = text.trim_start().strip_prefix("```") else {
            before = text.trim();
            continue;
        };
        let body: Vec<&str> = lines.by_ref().map(|(text, _)| text).take_while(|text| text.trim() != "```").collect();
        let mut marker = before.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
        for (start, shows) in [("with a daemon: ", READY), ("with a daemon that is not ready: ", BLOCKED)] {
            if let Some(command) = marker.and_then(|marker| marker.strip_prefix(start)) {
                found.push(Block { line, kind: Kind::Daemon { command: command.to_owned(), shows } });
                marker = None;
            }
        }
        found.push(Block { line, kind: kind(language.trim(), &body, marker, line) });
        before = "";
    }
    found
}

fn kind(language: &str, body: &[&str], marker: Option<&str>, line: usize) -> Kind {
    let text = body.join("\n");
    let has_commands = body.iter().any(|text| text.starts_with("$ "));
    match (marker, language) {
        (Some("runs in the background"), "sh") => Kind::Daemon { command: text, shows: READY },
        (Some(marker), _) => {
            let reason = marker.strip_prefix("not run: ");
            assert!(reason.is_some_and(|reason| REASONS.contains(&reason)), "line {line}: unknown comment `{marker}`");
            Kind::Nothing
        }
        (None, "sh") => Kind::Script(text),
        (None, "console") => {
            assert!(has_commands, "line {line}: no command begins with `$ `");
            Kind::Commands(commands(body))
        }
        (None, "toml") => Kind::Toml(text),
        (None, "json") => Kind::Json(text),
        (None, "python") => Kind::Python(text),
        (None, "") if !has_commands => Kind::Nothing,
        (None, other) => panic!("line {line}: blocks in `{other}` are not known; commands are `sh` or `console`"),
    }
}

/// Each command with the lines below it.
fn commands(body: &[&str]) -> Vec<(String, String)> {
    let mut commands: Vec<(String, Vec<&str>)> = Vec::new();
    for text in body {
        match (text.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command.to_owned(), Vec::new())),
            (None, Some((_, printed))) => printed.push(text),
            (None, None) => panic!("`{text}` comes before any command"),
        }
    }
    commands.into_iter().map(|(command, printed)| (command, printed.join("\n"))).collect()
}

/// Whether an output is the documented one.
pub(crate) fn fits(expected: &str, printed: &str) -> bool {
    let lines = |text: &'_ str| text.trim_end().lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
    lines_fit(&lines(expected), &lines(printed))
}

fn lines_fit(expected: &[String], printed: &[String]) -> bool {
    match (expected, printed) {
        ([], rest) => rest.is_empty(),
        ([first, later @ ..], _) if first.trim() == "…" => {
            (0..=printed.len()).any(|skip| lines_fit(later, &printed[skip..]))
        }
        ([first, later @ ..], [line, rest @ ..]) => line_fits(first, line) && lines_fit(later, rest),
        (_, []) => false,
    }
}

fn line_fits(expected: &str, line: &str) -> bool {
    let (start, elided) = expected.split_once('…').map_or((expected, None), |(start, rest)| (start, Some(rest)));
    match (line.strip_prefix(start), elided) {
        (Some(rest), None) => rest.is_empty(),
        (Some(rest), Some(later)) => {
            (0..=rest.len()).any(|at| rest.get(at..).is_some_and(|rest| line_fits(later, rest)))
        }
        (None, _) => false,
    }
}

#[test]
fn an_elision_stands_for_text_of_a_line_or_for_lines_and_for_nothing_else() {
    for (expected, printed) in [
        ("a\nb", "a  \nb\n"),
        ("a … c", "a b c"),
        ("at …", "at 12:00"),
        ("…", "whatever\nthere is"),
        ("first\n…\nlast", "first\nlast"),
        ("", ""),
    ] {
        assert!(fits(expected, printed), "{expected:?} {printed:?}");
    }
    for (expected, printed) in
        [("a", "a\nb"), ("a … c", "a b d"), ("a…b", "a\nb"), ("first\n…\nlast", "first\nb"), ("", "a"), ("a", "")]
    {
        assert!(!fits(expected, printed), "{expected:?} {printed:?}");
    }
}

#[test]
fn blocks_are_known_by_their_language_and_the_comment_before_them() {
    let document = "```sh\nls\n```\n\n<!-- not run: it takes minutes -->\n```sh\nbench\n```\n\n```console\n$ echo a\na\n$ true\n```\n\n\
                    <!-- runs in the background -->\n```sh\nserve\n```\n```\n a ─► b\n```\n\
                    <!-- with a daemon that is not ready: serve -->\n```sh\nask\n```\n";
    let found = blocks(document);
    let commands = vec![("echo a".to_owned(), "a".to_owned()), ("true".to_owned(), String::new())];
    let kinds = [
        Kind::Script("ls".to_owned()),
        Kind::Nothing,
        Kind::Commands(commands),
        Kind::Daemon { command: "serve".to_owned(), shows: READY },
        Kind::Nothing,
        Kind::Daemon { command: "serve".to_owned(), shows: BLOCKED },
        Kind::Script("ask".to_owned()),
    ];
    assert_eq!(found.iter().map(|block| block.kind.clone()).collect::<Vec<_>>(), kinds);
    assert_eq!(found.iter().map(|block| block.line).collect::<Vec<_>>(), [1, 6, 10, 17, 20, 24, 24]);
}

#[test]
#[should_panic(expected = "unknown comment `not run: it is too hard`")]
fn a_block_is_not_left_out_for_another_reason() {
    blocks("<!-- not run: it is too hard -->\n```sh\nls\n```\n");
}
