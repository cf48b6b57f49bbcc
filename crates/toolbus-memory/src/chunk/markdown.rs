//! The blocks of a Markdown text: its headings of the first three levels, blank lines, fenced code and tables.
//!
//! Most of a text is paragraphs and code, and is passed over line by line; what could be anything else is given to a
//! parser, in parts, so that neither time nor memory depend on its content. A part begins where no block can be
//! open: after a blank line, at a line that is not indented, and outside fenced code and HTML.

use std::collections::VecDeque;

use memchr::{memchr, memmem, memrchr};
use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use super::pack::{CutMark, MarkKind};

/// Longest part that is parsed at once, in bytes.
const MAX_PARSED: usize = 256 * 1024;
/// Blank lines of one part after which only those are noted that are so many bytes apart.
const MANY_BLANKS: usize = 1024;
const BLANK_GAP: usize = 256;
/// Longest heading that is shown, in bytes of the source and in characters of the text.
const MAX_HEADING: (usize, usize) = (1024, 120);
/// Deepest heading that begins a section.
const MAX_LEVEL: u8 = 3;

/// The marks of a Markdown text, in order.
pub(super) struct Blocks<'t> {
    text: &'t str,
    /// Beginning of a line at which no block is open.
    at: usize,
    /// End of the last line found in a part that the parser must see: text before it is not looked through again.
    notable: usize,
    found: VecDeque<CutMark>,
}

impl<'t> Blocks<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, at: 0, notable: 0, found: VecDeque::new() }
    }

    fn rest(&self, from: usize) -> &'t [u8] {
        self.text.as_bytes().get(from..).unwrap_or_default()
    }

    /// The line at `from`, with its end.
    fn line(&self, from: usize) -> &'t [u8] {
        let rest = self.rest(from);
        rest.get(..memchr(b'\n', rest).map_or(rest.len(), |end| end + 1)).unwrap_or_default()
    }

    /// Returns the beginning of the line that `at` is in.
    fn line_start(&self, at: usize) -> usize {
        let before = self.text.as_bytes().get(..at).unwrap_or_default();
        memrchr(b'\n', before).map_or(0, |newline| newline + 1)
    }

    fn mark(&mut self, at: usize, kind: MarkKind) {
        if at < self.text.len() {
            self.found.push_back(CutMark { at, kind });
        }
    }

    /// Passes over the blank lines, the block or the part that begins at `at`.
    fn step(&mut self) {
        let (start, line) = (self.at, self.line(self.at));
        if is_blank(line) {
            self.at += line.len();
            while self.at < self.text.len() && is_blank(self.line(self.at)) {
                self.at += self.line(self.at).len();
            }
            self.mark(self.at, MarkKind::Block);
        } else if let Some(level) = heading(line) {
            if level <= MAX_LEVEL {
                self.mark(start, MarkKind::Section(level));
            }
            self.at += line.len();
        } else if let Some(fence) = Fence::opened_by(line) {
            let end = start + line.len();
            self.at = end + fence.end(self.rest(end));
            self.mark(start, MarkKind::Whole { end: self.at });
            self.mark(self.at, MarkKind::Block);
        } else if let Some(end) = html_end(line) {
            let rest = self.rest(start);
            let last = memmem::find(rest, end.as_bytes()).map_or(self.text.len(), |found| start + found);
            self.at = last + self.line(last).len();
            self.mark(self.at, MarkKind::Block);
        } else if let Some(end) = self.table(start, line) {
            self.at = end;
            self.mark(start, MarkKind::Whole { end });
            self.mark(end, MarkKind::Block);
        } else {
            self.part();
        }
    }

    /// Returns the end of the table that begins with this line, if it is certain: each of its lines begins with a bar.
    fn table(&self, start: usize, line: &[u8]) -> Option<usize> {
        let rows = start + line.len();
        let delimiters = self.line(rows);
        if !(line.starts_with(b"|") && delimiters.starts_with(b"|") && is_notable(delimiters)) {
            return None;
        }
        let mut end = rows + delimiters.len();
        let head = self.text.get(start..end.min(start + MAX_PARSED))?;
        let first = Parser::new_ext(head, Options::ENABLE_TABLES).next();
        matches!(first, Some(Event::Start(Tag::Table(_)))).then_some(())?;
        while self.rest(end).starts_with(b"|") {
            end += self.line(end).len();
        }
        let next = self.line(end);
        (is_blank(next) || interrupts(next)).then_some(end)
    }

    /// Passes over the part that begins at `at`, or over what is certain of it.
    fn part(&mut self) {
        let (start, mut notable, mut blanks) = (self.at, self.notable, Vec::new());
        let end = self.lines(start, start, &mut blanks, |at, line| {
            if notable > start {
                // Of what is given to the parser, no more is looked at than it gets.
                return at > start + MAX_PARSED;
            }
            if at > start && interrupts(line) {
                return true;
            }
            if is_notable(line) {
                notable = at + line.len();
            }
            false
        });
        self.notable = notable;
        if notable > start {
            self.parse(end, blanks);
        } else {
            self.at = end;
            blanks.into_iter().for_each(|at| self.mark(at, MarkKind::Block));
        }
    }

    /// Passes over the lines from `at` on, of the part that begins at `start`, and notes where blank ones end. Gives the
    /// end of the part, or the line at which `stops` holds.
    fn lines(
        &self,
        start: usize,
        mut at: usize,
        blanks: &mut Vec<usize>,
        mut stops: impl FnMut(usize, &[u8]) -> bool,
    ) -> usize {
        while at < self.text.len() {
            let line = self.line(at);
            if is_blank(line) {
                while at < self.text.len() && is_blank(self.line(at)) {
                    at += self.line(at).len();
                }
                // As many as a long list can have are not needed.
                let gap = ((at - start) / MANY_BLANKS).min(BLANK_GAP);
                if blanks.last().is_none_or(|last| last + gap <= at) {
                    blanks.push(at);
                }
                if self.rest(at).first().is_none_or(|byte| *byte > b' ') {
                    break;
                }
            } else if stops(at, line) {
                break;
            } else {
                at += line.len();
            }
        }
        at
    }

    /// Parses the part from `at` to `end`, or the beginning of one that is too long.
    fn parse(&mut self, end: usize, mut blanks: Vec<usize>) {
        let start = self.at;
        let cut = self.text.floor_char_boundary(end.min(start + MAX_PARSED));
        let until = match self.line_start(cut) {
            newline if cut < end && newline > start => newline,
            _ => cut,
        };
        let part = self.text.get(start..until).unwrap_or_default();
        let (mut marks, mut depth, mut last) = (Vec::new(), 0_usize, start);
        for (event, range) in Parser::new_ext(part, Options::ENABLE_TABLES).into_offset_iter() {
            let block = match event {
                Event::Start(tag) => {
                    depth += 1;
                    tag
                }
                Event::End(_) => {
                    depth = depth.saturating_sub(1);
                    continue;
                }
                _ => continue,
            };
            let at = self.line_start(start + range.start).max(start);
            if depth == 1 {
                last = at;
            }
            match block {
                Tag::Heading { level, .. } if depth == 1 && level as u8 <= MAX_LEVEL => {
                    marks.push(CutMark { at, kind: MarkKind::Section(level as u8) });
                }
                Tag::Table(_) | Tag::CodeBlock(CodeBlockKind::Fenced(_)) => {
                    let last = start + range.end.max(range.start + 1) - 1;
                    let end = last + self.line(last).len();
                    marks.push(CutMark { at, kind: MarkKind::Whole { end } });
                }
                _ => {}
            }
        }
        // The last block of the parser may go on after the part that it saw.
        let last_line = self.line(last);
        let is_open = Fence::opened_by(last_line).is_some() || html_end(last_line).is_some();
        self.at = match last > start {
            true if is_open || until < end => last,
            true => end,
            false if until < end => {
                // A block that is too long to be parsed ends with its part, or where a line begins another block
                // whatever is open.
                blanks.retain(|at| *at <= until);
                let from = if self.line_start(until) == until { until } else { until + self.line(until).len() };
                self.lines(start, from, &mut blanks, |at, line| at > until && interrupts(line))
            }
            false => end,
        };
        self.merge(marks, &blanks);
    }

    /// Marks blocks and blank lines up to `at`, these outside blocks that are kept whole.
    fn merge(&mut self, mut marks: Vec<CutMark>, blanks: &[usize]) {
        marks.sort_by_key(|mark| mark.at);
        let (mut blanks, mut whole, until) = (blanks.iter().copied().peekable(), 0, self.at);
        for mark in marks.into_iter().filter(|mark| mark.at < until) {
            while let Some(at) = blanks.next_if(|at| *at < mark.at) {
                if at >= whole {
                    self.mark(at, MarkKind::Block);
                }
            }
            if let MarkKind::Whole { end } = mark.kind {
                whole = whole.max(end);
            }
            self.mark(mark.at, mark.kind);
        }
        for at in blanks.filter(|at| *at >= whole && *at <= until) {
            self.mark(at, MarkKind::Block);
        }
    }
}

impl Iterator for Blocks<'_> {
    type Item = CutMark;

    fn next(&mut self) -> Option<CutMark> {
        while self.found.is_empty() && self.at < self.text.len() {
            self.step();
        }
        self.found.pop_front()
    }
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))
}

/// A line without the spaces that a block may be indented by.
fn unindented(line: &[u8]) -> Option<&[u8]> {
    let indent = line.iter().take_while(|byte| **byte == b' ').count();
    (indent <= 3).then(|| line.get(indent..).unwrap_or_default())
}

/// The level of the heading that a line is, if it begins with `#`.
fn heading(line: &[u8]) -> Option<u8> {
    let line = unindented(line)?;
    let level = line.iter().take_while(|byte| **byte == b'#').count();
    let ends = line.get(level).is_none_or(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'));
    u8::try_from(level).ok().filter(|level| (1..=6).contains(level) && ends)
}

/// Whether a line begins a block of its own, whatever list, quote, table or paragraph is before it.
fn interrupts(line: &[u8]) -> bool {
    match line.first() {
        Some(b'#') => heading(line).is_some(),
        Some(b'`' | b'~') => Fence::opened_by(line).is_some(),
        _ => false,
    }
}

/// Whether a line may be or belong to anything but text, lists and quotes of text, indented code.
fn is_notable(line: &[u8]) -> bool {
    let mut rest = line;
    loop {
        rest = match rest {
            [b' ' | b'\t' | b'>' | b'*' | b'+' | b'.' | b')' | b'0'..=b'9', rest @ ..] => rest,
            [b'-', b' ' | b'\t', rest @ ..] => rest,
            _ => break,
        };
    }
    match rest.first() {
        None | Some(b'#' | b'<' | b'\r' | b'\n') => true,
        Some(b'`') => rest.starts_with(b"```"),
        Some(b'~') => rest.starts_with(b"~~~"),
        Some(b'-' | b'=' | b':' | b'|') => {
            rest.iter().all(|byte| matches!(byte, b'-' | b'=' | b':' | b'|' | b' ' | b'\t' | b'\r' | b'\n'))
        }
        Some(_) => false,
    }
}

/// The characters that a fenced block is opened by.
struct Fence {
    character: u8,
    length: usize,
}

impl Fence {
    fn opened_by(line: &[u8]) -> Option<Self> {
        let line = unindented(line)?;
        let character = *line.first().filter(|byte| matches!(byte, b'`' | b'~'))?;
        let length = line.iter().take_while(|byte| **byte == character).count();
        let info = line.get(length..).unwrap_or_default();
        (length >= 3 && (character == b'~' || memchr(b'`', info).is_none())).then_some(Self { character, length })
    }

    fn is_closed_by(&self, line: &[u8]) -> bool {
        let Some(line) = unindented(line) else { return false };
        let length = line.iter().take_while(|byte| **byte == self.character).count();
        length >= self.length && is_blank(line.get(length..).unwrap_or_default())
    }

    /// Returns the end of the block with this content: after the line that closes it, if any does.
    fn end(&self, content: &[u8]) -> usize {
        let finder = memmem::Finder::new(if self.character == b'`' { b"```" } else { b"~~~" });
        let mut from = 0;
        while let Some(found) = content.get(from..).and_then(|rest| finder.find(rest)) {
            let before = content.get(..from + found).unwrap_or_default();
            let start = memrchr(b'\n', before).map_or(0, |newline| newline + 1);
            let rest = content.get(start..).unwrap_or_default();
            let end = memchr(b'\n', rest).map_or(rest.len(), |newline| newline + 1);
            if rest.get(..end).is_some_and(|line| self.is_closed_by(line)) {
                return start + end;
            }
            from = start + end;
        }
        content.len()
    }
}

/// Returns what ends the HTML that a line begins, where blank lines do not.
fn html_end(line: &[u8]) -> Option<&'static str> {
    let tag = unindented(line)?.strip_prefix(b"<")?;
    for (start, end) in [("!--", "-->"), ("?", "?>"), ("![CDATA[", "]]>")] {
        if tag.starts_with(start.as_bytes()) {
            return Some(end);
        }
    }
    if let [b'!', letter, ..] = tag
        && letter.is_ascii_alphabetic()
    {
        return Some(">");
    }
    for (name, end) in [("script", "</script>"), ("pre", "</pre>"), ("style", "</style>"), ("textarea", "</textarea>")]
    {
        let is_named = tag.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name.as_bytes()));
        if is_named && tag.get(name.len()).is_none_or(|next| matches!(next, b' ' | b'\t' | b'\r' | b'\n' | b'>')) {
            return Some(end);
        }
    }
    None
}

/// The text of the heading at an offset of a Markdown text, without its markup.
pub(super) fn heading_text(text: &str, at: usize) -> String {
    let source = text.get(at..text.floor_char_boundary(at + MAX_HEADING.0)).unwrap_or_default();
    let source = match source.split_inclusive('\n').next() {
        Some(line) if heading(line.as_bytes()).is_some() => line,
        _ => source,
    };
    let mut shown = String::new();
    for event in Parser::new_ext(source, Options::empty()) {
        match event {
            Event::Text(part) | Event::Code(part) => shown.push_str(&part),
            Event::SoftBreak | Event::HardBreak => shown.push(' '),
            Event::End(TagEnd::Heading(HeadingLevel::H1 | HeadingLevel::H2 | HeadingLevel::H3)) => break,
            _ => {}
        }
    }
    shorten(shown.trim())
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_HEADING.1) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sections(text: &str) -> Vec<(u8, usize)> {
        let sections = Blocks::new(text).filter_map(|mark| match mark.kind {
            MarkKind::Section(level) => Some((level, mark.at)),
            MarkKind::Block | MarkKind::Whole { .. } => None,
        });
        sections.collect()
    }

    fn wholes(text: &str) -> Vec<&str> {
        let wholes = Blocks::new(text).filter_map(|mark| match mark.kind {
            MarkKind::Whole { end } => text.get(mark.at..end),
            MarkKind::Section(_) | MarkKind::Block => None,
        });
        wholes.collect()
    }

    /// The headings that the parser finds in the text as a whole.
    fn parsed(text: &str) -> Vec<(u8, usize)> {
        let (mut depth, mut found) = (0, Vec::new());
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(tag) => {
                    depth += 1;
                    if let Tag::Heading { level, .. } = tag
                        && depth == 1
                        && level as u8 <= MAX_LEVEL
                    {
                        found.push((level as u8, Blocks::new(text).line_start(range.start)));
                    }
                }
                Event::End(_) => depth -= 1,
                _ => {}
            }
        }
        found
    }

    #[test]
    fn headings_of_three_levels_begin_sections_in_both_notations() {
        let text = "# a\ntext\n## b ##\n\nc\n===\n\nd\n---\n### e\n#### f\n";
        assert_eq!(sections(text), [(1, 0), (2, 9), (1, 18), (2, 25), (3, 31)]);
    }

    #[test]
    fn a_number_sign_is_no_heading_in_code_html_quotes_and_lists_nor_without_a_space() {
        for text in [
            "```sh\n# a\n\n# b\n```\n",
            "~~~\n# a\n```\n# b\n~~~\n",
            "````\n```\n# a\n````\n",
            "```\n# never closed\n",
            "text\n```\n\n# in a block that follows text\n\n```\n",
            "    # indented\n",
            "<!--\n\n# a\n\n-->\n",
            "<pre>\n\n# a\n\n</pre>\n",
            "text\n<script>\n\n# a\n\n</script>\n",
            "> # quoted\n",
            "- # in a list\n",
            "- a\n\n  # in a list\n",
            "- ```\n  # a\n\n  # b\n  ```\n",
            "#tag\n",
            "####### seven\n",
            "| # a |\n|---|\n| # b |\n",
        ] {
            assert_eq!(sections(text), [], "{text}");
            assert_eq!(sections(&format!("{text}\n\n# end")).len(), usize::from(!text.contains("never")), "{text}");
        }
    }

    #[test]
    fn fenced_code_and_tables_are_blocks_that_are_kept_whole() {
        let code = "```\na\n\nb\n```\n";
        let table = "| a | b |\n|---|---|\n| 1 | 2 |\n";
        assert_eq!(wholes(&format!("text\n\n{code}text\n{code}\n{table}\ntext")), [code, code, table]);
        assert_eq!(wholes("- ```\n  a\n\n  b\n  ```\n\nc"), ["- ```\n  a\n\n  b\n  ```\n"]);
    }

    #[test]
    fn the_text_of_a_heading_is_without_its_markup_and_short() {
        assert_eq!(heading_text("## The [`serve`](x) *command* ##\ntext", 0), "The serve command");
        assert_eq!(heading_text("Two\nlines\n===\n", 0), "Two lines");
        assert_eq!(heading_text(&format!("# {}", "ä".repeat(2000)), 0).chars().count(), MAX_HEADING.1 + 1);
        assert_eq!(heading_text("#\n", 0), "");
    }

    #[test]
    fn a_block_longer_than_a_parse_window_hides_no_heading_after_it() {
        let long = [
            "| a | b |\n|---|---|\n".to_owned() + &"| 1 | 2 |\n".repeat(40_000),
            "<div>\n".repeat(60_000),
            format!("<div>{}\n", "x".repeat(400_000)),
            "a > b\n---\n".to_owned() + &"> quoted\n".repeat(40_000),
            "- item\n\n  ```\n  code\n  ```\n\n".repeat(20_000),
        ];
        for text in long {
            let with_heading = format!("{text}\n# end\n\ntext");
            assert_eq!(sections(&with_heading).last(), Some(&(1, text.len() + 1)), "{}", text.get(..20).unwrap());
        }
    }

    #[test]
    fn blank_lines_of_a_long_list_are_noted_as_far_as_they_are_needed() {
        let text = "- a\n\n  b\n\n".repeat(500_000);
        let marks = Blocks::new(&text).count();
        assert!(marks >= 1000, "{marks}");
    }

    fn lines() -> impl Strategy<Value = String> {
        let line = prop::sample::select(vec![
            "# a",
            "## b",
            "### c",
            "#### d",
            "#",
            " # e",
            "    # f",
            "\t# g",
            "#h",
            "```",
            "```rust",
            "````",
            "~~~",
            "  ```",
            "``` a`b",
            "text",
            "more text",
            "",
            "",
            "",
            "  ",
            "===",
            "---",
            "- - -",
            "-",
            "- ",
            "- item",
            "- # h",
            "- ```",
            "  in item",
            "  # in item",
            "    ```",
            "> quote",
            "> # h",
            "> ```",
            ">",
            "1. one",
            "1. ```",
            "| a | b |",
            "|---|---|",
            "| 1 | 2 |",
            "-|-",
            "a|b",
            ":-",
            "|:-|",
            "|-|-|",
            "| 1 |",
            "| 1 | 2 |",
            "|---|---|",
            "| 3 | 4 |",
            "<div>",
            "</div>",
            "<!-- c",
            "-->",
            "<pre>",
            "</pre>",
            "<script>",
            "</script>",
            "<?x",
            "?>",
            "<!A",
            "<b>",
            "* * *",
            "*",
            "**bold**",
            "+ ",
            "[a]: b",
            "ä",
            "\u{c}",
        ]);
        let end = prop::sample::select(vec!["\n", "\n", "\n", "\r\n", "\n\n"]);
        prop::collection::vec((line, end), 0..40)
            .prop_map(|lines| lines.into_iter().flat_map(|(line, end)| [line, end]).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn sections_are_those_that_a_parser_finds_in_the_whole_text(text in lines()) {
            prop_assert_eq!(sections(&text), parsed(&text));
        }

        #[test]
        fn marks_are_in_order_and_at_the_beginnings_of_lines(text in lines()) {
            let marks: Vec<CutMark> = Blocks::new(&text).collect();
            prop_assert!(marks.is_sorted_by_key(|mark| mark.at), "{marks:?}");
            for mark in marks {
                prop_assert!(mark.at == 0 || text.as_bytes().get(mark.at - 1) == Some(&b'\n'), "{mark:?}");
            }
        }
    }
}
