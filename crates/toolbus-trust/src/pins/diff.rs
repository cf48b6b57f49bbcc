//! How a definition changed, for people.

use serde_json::Value;
use similar::TextDiff;

use super::definition::Definition;
use crate::text::is_invisible;

/// Most lines of one difference.
const MAX_LINES: usize = 400;
/// Length from which a line is broken at the next space, in characters.
const WIDTH: usize = 110;
/// Length at which it is broken wherever that is.
const MAX_WIDTH: usize = 400;
/// Lines around each change that stay as they are.
const CONTEXT: usize = 3;

/// A difference, line by line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unified {
    /// The lines; the last one says how many are left out, if any are.
    pub text: String,
    /// How many are left out.
    pub left_out: usize,
}

/// The difference of two definitions, line by line as `diff -u` has it; one that is absent has no lines. Characters that
/// a terminal would obey, or that are not seen, are escaped.
#[must_use]
pub fn unified(before: Option<&Definition>, after: Option<&Definition>) -> Unified {
    let (before, after) = (before.map(readable).unwrap_or_default(), after.map(readable).unwrap_or_default());
    let difference = TextDiff::from_lines(&before, &after);
    let text = difference.unified_diff().context_radius(CONTEXT).to_string();
    let mut lines: Vec<String> = text.lines().take(MAX_LINES).map(str::to_owned).collect();
    let left_out = text.lines().count().saturating_sub(MAX_LINES);
    if left_out > 0 {
        lines.push(format!("… and {left_out} more lines"));
    }
    Unified { text: lines.join("\n"), left_out }
}

/// A definition in lines, in which everything can be seen: texts by sentence, so that a changed word does not hide in a
/// paragraph.
fn readable(definition: &Definition) -> String {
    let mut lines = Lines::default();
    let Ok(Value::Object(members)) = serde_json::from_str(definition.as_json()) else {
        // Deeper than is read: better without its parts than not at all.
        lines.indented(definition.as_json());
        return lines.0;
    };
    for name in ["name", "title", "effect", "description", "parameters", "outputSchema"] {
        match members.get(name) {
            None => {}
            Some(Value::String(text)) if name == "description" => {
                lines.plain("description:");
                text.split('\n').for_each(|line| lines.indented(line));
            }
            Some(Value::String(text)) => lines.plain(&format!("{name}: {text}")),
            Some(schema) => {
                lines.plain(&format!("{name}:"));
                format!("{schema:#}").split('\n').for_each(|line| lines.indented(line));
            }
        }
    }
    lines.0
}

#[derive(Default)]
struct Lines(String);

impl Lines {
    fn plain(&mut self, line: &str) {
        self.0.extend(line.chars().flat_map(visible));
        self.0.push('\n');
    }

    /// One line, or several where it has several sentences or is long.
    fn indented(&mut self, line: &str) {
        let (mut part, mut length) = (String::new(), 0);
        let mut characters = line.chars().peekable();
        while let Some(c) = characters.next() {
            part.push(c);
            length += 1;
            let is_end = matches!(c, '.' | '!' | '?' | ';') || length >= WIDTH;
            if (is_end && characters.peek() == Some(&' ')) || length >= MAX_WIDTH {
                self.plain(&format!("  {}", std::mem::take(&mut part)));
                length = 0;
            }
        }
        self.plain(&format!("  {part}"));
    }
}

/// A character as everybody sees it.
fn visible(c: char) -> impl Iterator<Item = char> {
    let is_seen = !c.is_control() && !is_invisible(c);
    is_seen.then_some(c).into_iter().chain((!is_seen).then(|| c.escape_unicode()).into_iter().flatten())
}

#[cfg(test)]
mod tests;
