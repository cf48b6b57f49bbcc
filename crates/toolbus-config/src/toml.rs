//! Reads TOML, with the position of every key and value.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Number, Value};
use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use crate::problem::{Position, Problem, Span};
use crate::tree::{KeyPath, ParsedFile};

/// Most syntax errors that are reported for one file: after the first few, they follow from each other.
const MAX_SYNTAX_ERRORS: usize = 5;
/// Longest excerpt of a line, in characters.
const MAX_EXCERPT: usize = 100;

/// Reads a TOML file.
///
/// # Errors
///
/// If `text` is not TOML: the format that it seems to have instead, or else the first syntax errors, with their lines but
/// for what these hold as values.
pub(crate) fn read(file: &str, text: &str) -> Result<ParsedFile, Vec<Problem>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    let reader = TomlReader::new(file, text);
    if !errors.is_empty() {
        if let Some((format, line)) = other_format(text) {
            let named =
                if Path::new(file).extension().is_some() { "its extension" } else { "the lack of an extension" };
            let what = format!(
                "not TOML, as {named} says: this looks like {}; name the file `….{}`",
                format.to_uppercase(),
                format
            );
            return Err(vec![Problem { location: format!("{file}:{line}:1"), key: String::new(), what }]);
        }
        return Err(errors.iter().take(MAX_SYNTAX_ERRORS).map(|error| reader.syntax_problem(error)).collect());
    }
    let mut spans = BTreeMap::new();
    reader.spans(&mut spans, &mut KeyPath::new(), table.get_ref());
    Ok(ParsedFile { file: file.to_owned(), root: Value::Object(entries(table.get_ref())), spans })
}

/// The format that the first line of a text shows which is not TOML, as its extension, and the number of that line.
fn other_format(text: &str) -> Option<(&'static str, usize)> {
    let has_words = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let (line, first) = text.lines().zip(1..).find(|(line, _)| has_words(line)).map(|(first, line)| (line, first))?;
    let is_name = |key: &str| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    let is_pair = |(key, value): (&str, &str)| is_name(key) && (value.is_empty() || value.starts_with([' ', '\t']));
    let first = first.trim_start_matches('\u{feff}').trim_end();
    if first.trim_start().starts_with('{') {
        return Some(("json", line));
    }
    (first == "---" || first.split_once(':').is_some_and(is_pair)).then_some(("yaml", line))
}

/// Reads one TOML value, such as `["a", "b"]`, without its positions.
pub(crate) fn value(text: &str) -> Option<Value> {
    let value = DeValue::parse(text).ok()?;
    Some(plain(value.get_ref()))
}

/// Reads a dotted key, such as `tools.limits."web_*".timeout`.
pub(crate) fn key(text: &str) -> Option<KeyPath> {
    let document = format!("{text} = 0");
    let table = DeTable::parse(&document).ok()?;
    let mut path = KeyPath::new();
    let mut table = table.get_ref();
    loop {
        let (key, value) = table.iter().next().filter(|_| table.len() == 1)?;
        path.push(key.get_ref().to_string());
        match value.get_ref() {
            DeValue::Table(below) => table = below,
            _ => return Some(path),
        }
    }
}

/// Returns the bytes of the sections of a TOML text whose paths are meant, in order: each from its header to the blank lines
/// and comments above the next one. None if `text` is not TOML.
#[must_use]
pub fn toml_sections(text: &str, is_meant: impl Fn(&[String]) -> bool) -> Vec<Range<usize>> {
    let Ok(table) = DeTable::parse(text) else { return Vec::new() };
    let mut headers = BTreeMap::new();
    note_headers(&mut headers, &mut KeyPath::new(), table.get_ref(), text);
    let ends = headers.keys().skip(1).map(|next| next - len_above(text.get(..*next).unwrap_or_default()));
    let ranges = headers.iter().zip(ends.chain([text.len()]));
    ranges.filter(|((_, path), _)| is_meant(path)).map(|((start, _), end)| *start..end).collect()
}

/// Notes where the header of each table is. A table without one is at a key, or at a brace.
fn note_headers(headers: &mut BTreeMap<usize, KeyPath>, path: &mut KeyPath, table: &DeTable<'_>, text: &str) {
    for (key, value) in table {
        path.push(key.get_ref().to_string());
        let elements = match value.get_ref() {
            DeValue::Array(elements) => elements.iter().collect(),
            _ => vec![value],
        };
        for element in elements {
            if let DeValue::Table(below) = element.get_ref() {
                let start = element.span().start;
                if text.get(start..).is_some_and(|rest| rest.starts_with('[')) {
                    headers.insert(start, path.clone());
                }
                note_headers(headers, path, below, text);
            }
        }
        path.pop();
    }
}

/// Length of the comments at the end of a text, with the blank lines before them.
fn len_above(text: &str) -> usize {
    let mut lines = text.split_inclusive('\n').rev().peekable();
    let mut length = 0;
    while let Some(line) = lines.next_if(|line| line.trim_start().starts_with('#')) {
        length += line.len();
    }
    while let Some(line) = lines.next_if(|line| line.trim().is_empty()) {
        length += line.len();
    }
    length
}

struct TomlReader<'a> {
    file: &'a str,
    text: &'a str,
    /// Start of each line, in bytes.
    lines: Vec<usize>,
}

impl<'a> TomlReader<'a> {
    fn new(file: &'a str, text: &'a str) -> Self {
        let after_breaks = text.match_indices('\n').map(|(offset, _)| offset + 1);
        Self { file, text, lines: std::iter::once(0).chain(after_breaks).collect() }
    }

    /// Notes the positions of every key of a table, and of those below.
    fn spans(&self, spans: &mut BTreeMap<KeyPath, Span>, path: &mut KeyPath, table: &DeTable<'_>) {
        for (key, value) in table {
            path.push(key.get_ref().to_string());
            self.note(spans, path, key.span().start, value);
            path.pop();
        }
    }

    fn note(&self, spans: &mut BTreeMap<KeyPath, Span>, path: &mut KeyPath, key: usize, value: &Spanned<DeValue<'_>>) {
        let span = Span { key: self.position(key), value: self.position(value.span().start) };
        spans.insert(path.clone(), span);
        match value.get_ref() {
            DeValue::Table(below) => self.spans(spans, path, below),
            DeValue::Array(elements) => {
                for (index, element) in elements.iter().enumerate() {
                    path.push(index.to_string());
                    self.note(spans, path, element.span().start, element);
                    path.pop();
                }
            }
            _ => {}
        }
    }

    fn position(&self, offset: usize) -> Position {
        let line = self.lines.partition_point(|start| *start <= offset);
        let start = line.checked_sub(1).and_then(|index| self.lines.get(index)).copied().unwrap_or(0);
        let column = self.text.get(start..offset).map_or(0, |before| before.chars().count()) + 1;
        Position { line, column }
    }

    fn syntax_problem(&self, error: &toml::de::Error) -> Problem {
        let position = self.position(error.span().map_or(0, |span| span.start));
        let Position { line, column } = position;
        let excerpt = masked(self.text.lines().nth(line - 1).unwrap_or_default());
        let what = if column <= MAX_EXCERPT {
            let margin = " ".repeat(line.to_string().len());
            format!("{}\n  {line} | {excerpt}\n  {margin} | {}^", error.message(), " ".repeat(column - 1))
        } else {
            error.message().to_owned()
        };
        Problem { location: format!("{}:{line}:{column}", self.file), key: String::new(), what }
    }
}

/// A line without its values, which may be secrets. Keys and punctuation stay, so that the mistake can be seen.
fn masked(line: &str) -> String {
    let is_header = line.trim_start().starts_with('[') && !line.contains(['"', '\'', '=', ',']);
    // The padding of a Base64 text inside a longer value is no sign of a key.
    let key_length = match line.split_once('=') {
        Some((key, value)) if !value.trim_start_matches('=').trim().is_empty() => key.chars().count(),
        _ if is_header => MAX_EXCERPT,
        _ => 0,
    };
    let shown = |(index, c): (usize, char)| if index < key_length || " \t\"'=[]{},".contains(c) { c } else { '*' };
    line.chars().take(MAX_EXCERPT).enumerate().map(shown).collect()
}

fn plain(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Boolean(flag) => Value::Bool(*flag),
        DeValue::Integer(number) => integer(number).map_or(Value::Null, Value::Number),
        DeValue::Float(number) => {
            number.as_str().parse().ok().and_then(Number::from_f64).map_or(Value::Null, Value::Number)
        }
        // No key takes a date; null fits no schema, so that the key is named in the problem.
        DeValue::Datetime(_) => Value::Null,
        DeValue::Array(elements) => elements.iter().map(|element| plain(element.get_ref())).collect(),
        DeValue::Table(table) => Value::Object(entries(table)),
    }
}

fn entries(table: &DeTable<'_>) -> Map<String, Value> {
    table.iter().map(|(key, entry)| (key.get_ref().to_string(), plain(entry.get_ref()))).collect()
}

fn integer(number: &DeInteger<'_>) -> Option<Number> {
    i64::from_str_radix(number.as_str(), number.radix()).ok().map(Number::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_syntax_error_shows_the_line_but_no_value() {
        let reader = TomlReader::new("a.toml", "[bus]\ntoken = \"hunter2");
        let (_, errors) = DeTable::parse_recoverable(reader.text);
        let text = reader.syntax_problem(&errors[0]).to_string();
        insta::assert_snapshot!(text, @r#"
        a.toml:2:17: invalid basic string, expected `"`
          2 | token = "*******
            |                 ^
        "#);
        assert!(!text.contains("hunter2"));
    }

    #[test]
    fn lines_of_a_list_or_of_a_long_string_are_masked_whole() {
        assert_eq!(masked(r#"  "hunter2","#), r#"  "*******","#);
        assert_eq!(masked("aHVudGVyMg=="), "**********==");
        assert_eq!(masked("token = hunter2"), "token = *******");
        assert_eq!(masked("[bus"), "[bus");
    }

    #[test]
    fn values_and_keys_are_read_alone() {
        assert_eq!(value(r#"["a", "b"]"#), Some(json!(["a", "b"])));
        assert_eq!(value("0x10"), Some(json!(16)));
        assert_eq!(value("[a"), None);
        assert_eq!(key(r#"tools.limits."web_*".timeout"#).unwrap(), ["tools", "limits", "web_*", "timeout"]);
        assert_eq!(key("a = 1\nb"), None);
        assert_eq!(key("a."), None);
    }

    #[test]
    fn sections_reach_from_their_header_to_the_comment_above_the_next() {
        let text = "# of a\n[a.b]\nx = '''\n[a.c]\n''' # [a.d]\n#y = 1\n\n# of c\n[c]\ny = [\n['x']\n]\n[a.b.d]\nz = {}\n# last\n";
        let found = |name: &str| -> Vec<&str> {
            let sections = toml_sections(text, |path| path.iter().any(|key| key == name));
            sections.into_iter().map(|section| &text[section]).collect()
        };
        assert_eq!(found("b"), ["[a.b]\nx = '''\n[a.c]\n''' # [a.d]\n#y = 1\n", "[a.b.d]\nz = {}\n# last\n"]);
        assert_eq!(found("c"), ["[c]\ny = [\n['x']\n]\n"]);
        assert!(found("x").is_empty() && toml_sections("[a", |_| true).is_empty());
    }

    #[test]
    fn positions_count_characters() {
        let reader = TomlReader::new("a.toml", "é = 1\nüü = 2");
        assert_eq!(reader.position(0), Position { line: 1, column: 1 });
        assert_eq!(reader.position(reader.text.find('2').unwrap()), Position { line: 2, column: 6 });
    }
}
