//! Tables of data. A table that lays out a page is none.

use super::dom::{Content, Dom, NodeId};

/// Most columns.
const MAX_COLUMNS: usize = 100;
/// Most rows over which one cell stretches.
const MAX_SPAN: usize = 1000;

/// A table with at least two columns, and nothing in its cells that a line cannot hold.
pub(super) struct Table<'a> {
    dom: &'a Dom,
    pub(super) caption: Option<NodeId>,
    rows: Vec<Vec<NodeId>>,
    has_header: bool,
}

impl<'a> Table<'a> {
    pub(super) fn of(dom: &'a Dom, table: NodeId, is_left_out: impl Fn(NodeId) -> bool) -> Option<Self> {
        let is_layout = |id: NodeId| matches!(dom.name(id), "table" | "pre" | "h1" | "h2" | "h3" | "hr");
        if dom.attribute(table, "role") == "presentation" || dom.below(table, &is_left_out).any(is_layout) {
            return None;
        }
        let (mut caption, mut rows, mut has_head) = (None, Vec::new(), false);
        for child in dom.children(table).filter(|id| !is_left_out(*id)) {
            match dom.name(child) {
                "caption" => caption = Some(child),
                "tr" => rows.push(child),
                "thead" | "tbody" | "tfoot" => {
                    let of_group = dom.children(child).filter(|id| dom.name(*id) == "tr" && !is_left_out(*id));
                    let before = rows.len();
                    rows.extend(of_group);
                    has_head |= dom.name(child) == "thead" && before == 0 && !rows.is_empty();
                }
                _ => {}
            }
        }
        let is_cell = |id: &NodeId| matches!(dom.name(*id), "td" | "th") && !is_left_out(*id);
        let rows: Vec<Vec<NodeId>> =
            rows.into_iter().map(|row| dom.children(row).filter(is_cell).take(MAX_COLUMNS).collect()).collect();
        let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
        let is_heading = |row: &Vec<NodeId>| !row.is_empty() && row.iter().all(|cell| dom.name(*cell) == "th");
        let has_header = has_head || rows.first().is_some_and(is_heading);
        (columns > 1).then_some(Self { dom, caption, rows, has_header })
    }

    /// The lines of the table; `cell` writes a cell.
    pub(super) fn lines(&self, mut cell: impl FnMut(NodeId) -> String) -> Vec<String> {
        // By column: in how many further rows a cell above stretches into it.
        let mut covered: Vec<usize> = Vec::new();
        let mut rows: Vec<Vec<String>> = Vec::new();
        for row in self.rows.iter().filter(|row| !row.is_empty()) {
            let mut texts: Vec<String> = Vec::new();
            let skip_covered = |texts: &mut Vec<String>, covered: &mut Vec<usize>| {
                while let Some(left) = covered.get_mut(texts.len()).filter(|left| **left > 0) {
                    *left -= 1;
                    texts.push(String::new());
                }
            };
            for id in row {
                skip_covered(&mut texts, &mut covered);
                let text = cell(*id);
                let (across, down) = (self.span(*id, "colspan"), self.span(*id, "rowspan"));
                for nth in 0..across.min(MAX_COLUMNS.saturating_sub(texts.len())) {
                    let column = texts.len();
                    if covered.len() <= column {
                        covered.resize(column + 1, 0);
                    }
                    if let Some(left) = covered.get_mut(column) {
                        *left = down - 1;
                    }
                    texts.push(if nth == 0 { text.clone() } else { String::new() });
                }
            }
            skip_covered(&mut texts, &mut covered);
            rows.push(texts);
        }
        let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
        if !self.has_header {
            rows.insert(0, Vec::new());
        }
        let line = |cells: &[String]| {
            let padded = cells.iter().map(String::as_str).chain(std::iter::repeat("")).take(columns);
            let mut line = "|".to_owned();
            for cell in padded {
                line.push(' ');
                line.push_str(cell);
                line.push_str(if cell.is_empty() { "|" } else { " |" });
            }
            line
        };
        let mut lines: Vec<String> = rows.iter().map(|row| line(row)).collect();
        lines.insert(1.min(lines.len()), format!("|{}", " --- |".repeat(columns)));
        lines
    }

    fn span(&self, cell: NodeId, name: &str) -> usize {
        match self.dom.content(cell) {
            Content::Element(..) => self.dom.attribute(cell, name).trim().parse().unwrap_or(1).clamp(1, MAX_SPAN),
            _ => 1,
        }
    }
}
