//! Writes a tree as Markdown (GitHub's flavour, with the definition lists of PHP Markdown Extra).

use std::borrow::Cow;

use toolbus_core::Clock;
use url::Url;

use super::HtmlLimits;
use super::article::ArticleChoice;
use super::code::{language, source_text};
use super::dom::{Content, Dom, NodeId};
use super::table::Table;

/// Deepest nesting that is written with its structure; below is text alone. A page cannot exhaust the stack.
const MAX_DEPTH: u32 = 200;
/// Nodes that are written between two looks at the clock.
const NODES_PER_CHECK: u32 = 4096;
/// Elements that are paragraphs or hold some.
const BLOCKS: [&str; 18] = [
    "p",
    "div",
    "ul",
    "ol",
    "table",
    "pre",
    "blockquote",
    "section",
    "article",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "dl",
    "figure",
];

/// Writes the chosen parts of a page.
pub(super) struct MarkdownWriter<'a> {
    pub(super) dom: &'a Dom,
    pub(super) choice: &'a ArticleChoice,
    pub(super) base: &'a Url,
    limits: &'a HtmlLimits,
    pub(super) out: String,
    /// Text with which each line begins, for quotes and lists.
    prefix: String,
    /// Texts with which the next line begins instead of the end of its prefix, such as the sign of a list item.
    pub(super) markers: Vec<Marker>,
    /// Line breaks before the next text.
    pub(super) breaks: u8,
    /// Whether white space is before the next text.
    has_space: bool,
    /// Signs that are written with the next text, so that none surrounds nothing.
    pub(super) opens: Vec<&'static str>,
    /// Number of surrounding elements that are one line.
    pub(super) inline: u32,
    pub(super) is_in_link: bool,
    is_in_strong: bool,
    is_in_emphasis: bool,
    pub(super) is_in_cell: bool,
    /// Whether the line has no text yet.
    pub(super) is_fresh: bool,
    depth: u32,
    until_check: u32,
    is_short: bool,
}

pub(super) struct Marker {
    /// Position in the prefix.
    at: usize,
    text: Cow<'static, str>,
}

impl<'a> MarkdownWriter<'a> {
    pub(super) fn new(dom: &'a Dom, choice: &'a ArticleChoice, base: &'a Url, limits: &'a HtmlLimits) -> Self {
        Self {
            dom,
            choice,
            base,
            limits,
            out: String::new(),
            prefix: String::new(),
            markers: Vec::new(),
            breaks: 0,
            has_space: false,
            opens: Vec::new(),
            inline: 0,
            is_in_link: false,
            is_in_strong: false,
            is_in_emphasis: false,
            is_in_cell: false,
            is_fresh: true,
            depth: 0,
            until_check: NODES_PER_CHECK,
            is_short: false,
        }
    }

    /// The Markdown, and whether a limit left out its end.
    pub(super) fn finish(self) -> (String, bool) {
        (self.out, self.is_short)
    }

    /// Writes a node with all below.
    pub(super) fn write(&mut self, id: NodeId) {
        if self.choice.leaves_out(id) || self.is_over() {
            return;
        }
        match self.dom.content(id) {
            Content::Text(text) => self.text(text),
            Content::Element(..) if self.depth > MAX_DEPTH => self.flat(id),
            Content::Element(name, _) => {
                self.depth += 1;
                self.element(id, &name.local);
                self.depth -= 1;
            }
            Content::Other => self.children(id),
        }
    }

    fn is_over(&mut self) -> bool {
        self.until_check -= 1;
        if self.until_check == 0 {
            self.until_check = NODES_PER_CHECK;
            self.is_short |= Clock::SYSTEM.now() > self.limits.until;
        }
        self.is_short |= self.out.len() > self.limits.output;
        self.is_short
    }

    pub(super) fn children(&mut self, id: NodeId) {
        let dom = self.dom;
        for child in dom.children(id) {
            self.write(child);
        }
    }

    fn flat(&mut self, id: NodeId) {
        let (dom, choice) = (self.dom, self.choice);
        for below in dom.below(id, |id| choice.leaves_out(id)) {
            if let Content::Text(text) = dom.content(below) {
                self.text(text);
                self.has_space = true;
            }
        }
    }

    fn element(&mut self, id: NodeId, name: &str) {
        match name {
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => self.heading(id, name),
            "p" | "div" | "section" | "article" | "main" | "header" | "footer" | "nav" | "aside" | "address"
            | "figure" | "figcaption" | "form" | "fieldset" | "legend" | "details" | "summary" | "hgroup"
            | "center" | "body" | "html" | "dl" | "tr" | "caption" | "search" | "option" | "noscript" => self.block(id),
            "ul" | "ol" | "menu" | "dir" => self.list(id, name == "ol"),
            "li" => self.item(id, "- ".into()),
            "dt" => {
                self.break_lines(2);
                self.children(id);
                self.break_lines(1);
            }
            "dd" => {
                self.break_lines(1);
                self.marked(id, ": ".into());
                self.break_lines(2);
            }
            "blockquote" => {
                self.break_lines(2);
                self.marked(id, "> ".into());
                self.break_lines(2);
            }
            "pre" | "listing" | "xmp" => self.code_block(id),
            "table" => self.table(id),
            "td" | "th" => {
                self.has_space = true;
                self.block(id);
            }
            "hr" => self.rule(),
            "br" => self.line_break(),
            "a" => self.link(id),
            "img" => self.image(id),
            "code" | "kbd" | "samp" | "tt" | "var" if name != "var" => self.code(id),
            "strong" | "b" => self.emphasised(id, "**", |writer| &mut writer.is_in_strong),
            "em" | "i" | "cite" | "dfn" | "var" => self.emphasised(id, "*", |writer| &mut writer.is_in_emphasis),
            "del" | "s" | "strike" => self.surrounded(id, "~~"),
            "q" => {
                self.word("“");
                self.children(id);
                self.has_space = false;
                self.word("”");
            }
            "rp" => {}
            "rt" => {
                self.word("(");
                self.children(id);
                self.has_space = false;
                self.word(")");
            }
            "math" if !self.dom.attribute(id, "alttext").is_empty() => {
                let text = format!("${}$", self.dom.attribute(id, "alttext").trim());
                self.begin();
                self.out.push_str(&text.replace('\n', " "));
            }
            "annotation" | "annotation-xml" => {}
            _ => self.children(id),
        }
    }

    fn block(&mut self, id: NodeId) {
        self.break_lines(2);
        self.children(id);
        self.break_lines(2);
    }

    /// Ends a line, or a paragraph with two breaks.
    pub(super) fn break_lines(&mut self, breaks: u8) {
        if self.inline > 0 {
            self.has_space = true;
        } else if self.markers.is_empty() {
            self.breaks = self.breaks.max(breaks);
            self.has_space = false;
        }
    }

    fn line_break(&mut self) {
        if self.inline > 0 {
            self.has_space = true;
        } else if self.breaks == 0 && !self.is_fresh {
            self.breaks = 1;
            self.has_space = false;
        }
    }

    /// Writes what must come before a text.
    pub(super) fn begin(&mut self) {
        if self.inline == 0 && (self.breaks > 0 || self.out.is_empty() || !self.markers.is_empty()) {
            self.line_start();
        } else if self.has_space && !self.is_fresh {
            self.out.push(' ');
        }
        self.has_space = false;
        for open in self.opens.drain(..) {
            self.out.push_str(open);
            self.is_fresh = false;
        }
    }

    pub(super) fn line_start(&mut self) {
        let common = self.markers.first().map_or(self.prefix.len(), |marker| marker.at);
        let common = self.prefix.get(..common).unwrap_or_default();
        if !self.out.is_empty() {
            for left in (0..self.breaks.max(1)).rev() {
                self.out.push('\n');
                if left > 0 {
                    self.out.push_str(common.trim_end());
                }
            }
        }
        self.breaks = 0;
        self.out.push_str(common);
        for marker in self.markers.drain(..) {
            self.out.push_str(&marker.text);
        }
        self.is_fresh = true;
    }

    /// Writes text of the page, with one space for any run of white space.
    fn text(&mut self, mut text: &str) {
        let is_space = |c: char| c.is_ascii_whitespace() || c == '\u{a0}';
        loop {
            let trimmed = text.trim_start_matches(is_space);
            self.has_space |= trimmed.len() != text.len();
            if trimmed.is_empty() {
                return;
            }
            let (word, rest) = trimmed.split_at(trimmed.find(is_space).unwrap_or(trimmed.len()));
            self.word(word);
            text = rest;
        }
    }

    /// Writes a word, with what Markdown would take for a sign escaped.
    fn word(&mut self, word: &str) {
        self.begin();
        if std::mem::take(&mut self.is_fresh) && self.inline == 0 && is_sign(word) {
            self.out.push('\\');
        }
        let mut rest = word;
        while let Some(at) = rest.find(['\\', '`', '*', '_', '[', ']', '<', '|', '~']) {
            let (plain, from) = rest.split_at(at);
            self.out.push_str(plain);
            let mut after = from.chars();
            let Some(sign) = after.next() else { return };
            let next = after.clone().next();
            let is_inner = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
            let is_escaped = match sign {
                '`' | '*' => true,
                '\\' => next.is_some_and(|c| c.is_ascii_punctuation()),
                '_' => {
                    !(is_inner(plain.chars().next_back().or_else(|| self.out.chars().next_back())) && is_inner(next))
                }
                '[' => self.is_in_link,
                ']' => self.is_in_link || next == Some('('),
                '<' => next.is_some_and(|c| c.is_ascii_alphabetic() || matches!(c, '/' | '!' | '?')),
                '|' => self.is_in_cell,
                _ => next == Some('~'),
            };
            if is_escaped {
                self.out.push('\\');
            }
            self.out.push(sign);
            rest = after.as_str();
        }
        self.out.push_str(rest);
    }

    fn heading(&mut self, id: NodeId, name: &str) {
        if self.inline > 0 || self.is_in_link {
            return self.block(id);
        }
        self.break_lines(2);
        let level = name.trim_start_matches('h').parse().unwrap_or(1);
        let at = self.prefix.len();
        let text = self.captured(id, false);
        if !text.is_empty() {
            self.markers.push(Marker { at, text: format!("{} ", "#".repeat(level)).into() });
            self.begin();
            self.out.push_str(&text);
            self.is_fresh = false;
        }
        self.break_lines(2);
    }

    /// Converts a node to one line.
    pub(super) fn captured(&mut self, id: NodeId, is_cell: bool) -> String {
        let out = std::mem::take(&mut self.out);
        let opens = std::mem::take(&mut self.opens);
        let before = (self.has_space, self.is_fresh, self.is_in_cell);
        (self.has_space, self.is_fresh, self.is_in_cell) = (false, true, is_cell || self.is_in_cell);
        self.inline += 1;
        self.children(id);
        self.inline -= 1;
        (self.has_space, self.is_fresh, self.is_in_cell) = before;
        self.opens = opens;
        std::mem::replace(&mut self.out, out)
    }

    fn list(&mut self, id: NodeId, is_ordered: bool) {
        let is_nested = self.dom.parent(id).is_some_and(|parent| self.dom.name(parent) == "li");
        self.break_lines(if is_nested { 1 } else { 2 });
        let mut number: i64 = self.dom.attribute(id, "start").trim().parse().unwrap_or(1);
        let mut is_first = true;
        let dom = self.dom;
        for child in dom.children(id) {
            if dom.name(child) != "li" {
                self.write(child);
                continue;
            }
            if !is_first && self.inline == 0 && self.markers.is_empty() {
                self.breaks = 1;
            }
            is_first = false;
            let sign = if is_ordered { format!("{number}. ").into() } else { Cow::Borrowed("- ") };
            number = number.saturating_add(1);
            if !self.choice.leaves_out(child) && !self.is_over() {
                self.depth += 1;
                self.item(child, sign);
                self.depth -= 1;
            }
        }
        self.break_lines(if is_nested { 1 } else { 2 });
    }

    fn item(&mut self, id: NodeId, sign: Cow<'static, str>) {
        if self.depth > MAX_DEPTH {
            return self.flat(id);
        }
        self.break_lines(1);
        self.marked(id, sign);
        self.break_lines(1);
    }

    /// Writes the children of a node with a sign before the first line, and room for it before the others.
    fn marked(&mut self, id: NodeId, sign: Cow<'static, str>) {
        if self.inline > 0 {
            return self.children(id);
        }
        let (at, markers) = (self.prefix.len(), self.markers.len());
        self.prefix.push_str(&if sign.starts_with('>') { sign.to_string() } else { " ".repeat(sign.len()) });
        self.markers.push(Marker { at, text: sign });
        self.children(id);
        self.prefix.truncate(at);
        self.markers.truncate(markers);
    }

    fn code_block(&mut self, id: NodeId) {
        if self.inline > 0 {
            return self.code(id);
        }
        let code = source_text(self.dom, id);
        let code = code.strip_prefix('\n').unwrap_or(&code).trim_end();
        if code.trim().is_empty() {
            return;
        }
        self.break_lines(2);
        self.begin();
        let fence = "`".repeat(longest_run(code).max(2) + 1);
        self.out.push_str(&fence);
        self.out.push_str(&language(self.dom, id));
        for line in code.lines() {
            // The prefix of a line may be far longer than the line.
            if self.out.len() > self.limits.output() {
                self.is_short = true;
                break;
            }
            self.out.push('\n');
            self.out.push_str(if line.is_empty() { self.prefix.trim_end() } else { &self.prefix });
            self.out.push_str(line);
        }
        self.out.push('\n');
        self.out.push_str(&self.prefix);
        self.out.push_str(&fence);
        self.is_fresh = false;
        self.break_lines(2);
    }

    fn code(&mut self, id: NodeId) {
        let code = source_text(self.dom, id);
        let code = code.split_whitespace().collect::<Vec<_>>().join(" ");
        if code.is_empty() {
            return;
        }
        self.begin();
        let fence = "`".repeat(longest_run(&code) + 1);
        let pad = if code.starts_with('`') || code.ends_with('`') { " " } else { "" };
        let code = if self.is_in_cell { code.replace('|', "\\|") } else { code };
        for part in [fence.as_str(), pad, &code, pad, &fence] {
            self.out.push_str(part);
        }
        self.is_fresh = false;
    }

    /// Writes strong or emphasised text, marked once where that is nested.
    fn emphasised(&mut self, id: NodeId, sign: &'static str, is_within: fn(&mut Self) -> &mut bool) {
        if std::mem::replace(is_within(self), true) {
            return self.children(id);
        }
        self.surrounded(id, sign);
        *is_within(self) = false;
    }

    /// Writes the children between two signs, unless they have no text or are paragraphs.
    fn surrounded(&mut self, id: NodeId, sign: &'static str) {
        let has_blocks = self.dom.children(id).any(|child| is_block(self.dom.name(child)));
        if has_blocks {
            return self.children(id);
        }
        let opens = self.opens.len();
        self.opens.push(sign);
        self.children(id);
        if self.opens.len() > opens {
            self.opens.truncate(opens);
        } else {
            self.out.push_str(sign);
        }
    }

    fn rule(&mut self) {
        if self.inline == 0 {
            self.break_lines(2);
            self.begin();
            self.out.push_str("---");
            self.is_fresh = false;
        }
        self.break_lines(2);
    }

    fn table(&mut self, id: NodeId) {
        let Some(table) = Table::of(self.dom, id, |id| self.choice.leaves_out(id)) else { return self.block(id) };
        if self.inline > 0 {
            return self.table_in_line(&table);
        }
        self.break_lines(2);
        for caption in &table.captions {
            self.block(*caption);
        }
        let columns = table.rows().map(|row| row.width).max().unwrap_or_default();
        let rule = format!("|{}", " --- |".repeat(columns));
        if !table.has_header() {
            self.line(&format!("|{}", " |".repeat(columns)));
            self.line(&rule);
        }
        for (nth, row) in table.rows().enumerate() {
            if self.is_over() {
                break;
            }
            let (mut line, mut written) = ("|".to_owned(), 0);
            for (column, cell) in row.cells {
                line.push_str(&" |".repeat(column - written));
                let text = self.captured(cell, true);
                for part in [" ", &text, if text.is_empty() { "|" } else { " |" }] {
                    line.push_str(part);
                }
                written = column + 1;
                // Each cell may be nearly as long as the limit.
                if line.len() > self.limits.output() {
                    self.is_short = true;
                    break;
                }
            }
            line.push_str(&" |".repeat(columns - written));
            self.line(&line);
            if nth == 0 && table.has_header() {
                self.line(&rule);
            }
        }
        self.break_lines(2);
    }

    /// Writes a table in a cell or a heading: cells are apart by commas, rows by semicolons.
    fn table_in_line(&mut self, table: &Table<'_>) {
        let captions = table.captions.iter().map(|caption| self.captured(*caption, self.is_in_cell));
        let mut lines: Vec<String> = captions.filter(|caption| !caption.is_empty()).collect();
        for row in table.rows() {
            if self.is_over() {
                break;
            }
            let cells = row.cells.iter().map(|(_, cell)| self.captured(*cell, self.is_in_cell));
            let cells: Vec<String> = cells.filter(|cell| !cell.is_empty()).collect();
            lines.push(cells.join(", "));
        }
        self.has_space = true;
        self.begin();
        self.out.push_str(&lines.join("; "));
        self.is_fresh = false;
        self.has_space = true;
    }

    /// Writes a line that is Markdown already.
    fn line(&mut self, line: &str) {
        self.begin();
        self.out.push_str(line);
        self.is_fresh = false;
        self.break_lines(1);
    }
}

fn is_block(name: &str) -> bool {
    BLOCKS.contains(&name)
}

/// Whether a word at the start of a line would begin something other than a paragraph.
fn is_sign(word: &str) -> bool {
    let only = |chars: &[char]| word.trim_end_matches(chars).is_empty();
    let is_number = || {
        let digits = word.trim_end_matches(['.', ')']);
        digits.len() + 1 == word.len() && !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    word.starts_with('>') || only(&['#']) || only(&['-']) || only(&['+']) || only(&['=']) || is_number()
}

/// The longest run of backticks.
fn longest_run(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or_default()
}
