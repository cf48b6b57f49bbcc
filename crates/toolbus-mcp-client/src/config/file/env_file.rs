//! The file that `envFile` names: a variable per line, as VS Code reads it.

use std::collections::BTreeMap;
use std::path::Path;

use toolbus_config::Secret;
use toolbus_core::text::shown;

/// Largest file, in bytes.
const MAX_FILE: u64 = 64 * 1024;

/// Reads the variables of a file.
///
/// # Errors
///
/// If the file cannot be read, is no regular file or is larger than 64 KiB, or if a line is no `NAME=value`. The text
/// shows no value.
pub(super) fn read(path: &str) -> Result<BTreeMap<String, Secret>, String> {
    let text = super::text(Path::new(path), MAX_FILE).map_err(|what| format!("`{}`: {what}", shown(path)))?;
    parse(&text).map_err(|line| format!("`{}`: line {line} is no variable; expected NAME=value", shown(path)))
}

/// The variables of a text, or the number of the first line that is none.
fn parse(text: &str) -> Result<BTreeMap<String, Secret>, usize> {
    let mut variables = BTreeMap::new();
    for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let (name, value) = line.split_once('=').ok_or(number + 1)?;
        let name = name.trim();
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(number + 1);
        }
        let value = value_of(value.trim()).ok_or(number + 1)?;
        variables.insert(name.to_owned(), Secret::new(value));
    }
    Ok(variables)
}

/// Reads a value: text in quotes, or all up to a comment; `None` if its quotes do not end.
fn value_of(written: &str) -> Option<String> {
    let quote = written.chars().next().filter(|c| matches!(c, '"' | '\''));
    let Some(quote) = quote else {
        // A comment begins after a space, so that a value may have `#` in it.
        let value = written.split_once(" #").map_or(written, |(value, _)| value);
        return Some(if value.starts_with('#') { String::new() } else { value.trim_end().to_owned() });
    };
    let mut value = String::new();
    let mut rest = written.chars().skip(1);
    loop {
        match rest.next()? {
            c if c == quote => break,
            '\\' if quote == '"' => value.push(match rest.next()? {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                other => other,
            }),
            c => value.push(c),
        }
    }
    let behind = rest.collect::<String>();
    let behind = behind.trim_start();
    (behind.is_empty() || behind.starts_with('#')).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match parse(text) {
            Ok(variables) => variables
                .iter()
                .map(|(name, value)| format!("{name}={:?}", value.expose()))
                .collect::<Vec<_>>()
                .join(" "),
            Err(line) => format!("line {line}"),
        }
    }

    #[test]
    fn variables_are_read_with_comments_quotes_and_export() {
        let text = "\u{feff}# keys\r\nA=1\r\n\nexport B = two words # of them\nC=\"a \\\"b\\\"\\n#c\" # end\nD='$x\\n'\nE=\nF=a#b\nG= # none\n";
        insta::assert_snapshot!(shown(text), @r##"A="1" B="two words" C="a \"b\"\n#c" D="$x\\n" E="" F="a#b" G="""##);
    }

    #[test]
    fn a_line_that_is_no_variable_is_named_by_its_number() {
        for text in ["A=1\nword", "=1\n", "A=1\n\"x", "A B=1", "A=\"open", "A='x' y"] {
            assert!(shown(text).starts_with("line "), "{text}: {}", shown(text));
        }
        assert_eq!(shown("A=1\n\nword"), "line 3");
    }
}
