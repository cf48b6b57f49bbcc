//! Tables of data. A table that lays out a page is none.

use super::dom::{Content, Dom, NodeId};

/// Most columns.
const MAX_COLUMNS: usize = 100;
/// Most rows over which one cell stretches.
const MAX_SPAN: usize = 1000;

/// A table with at least two columns, and nothing in its cells that a line cannot hold.
pub(super) struct Table<'a> {
    dom: &'a Dom,
    pub(super) captions: Vec<NodeId>,
    rows: Vec<Vec<NodeId>>,
    has_header: bool,
}

impl<'a> Table<'a> {
    pub(super) fn of(dom: &'a Dom, table: NodeId, is_left_out: impl Fn(NodeId) -> bool) -> Option<Self> {
        if dom.attribute(table, "role") == "presentation" {
            return None;
        }
        let (mut captions, mut rows, mut has_head) = (Vec::new(), Vec::new(), false);
        for child in dom.children(table).filter(|id| !is_left_out(*id)) {
            match dom.name(child) {
                "caption" => captions.push(child),
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
        // A table in a table without a header lays it out; in one with a header it is the content of a cell.
        let is_layout = |id: NodeId| {
            let name = dom.name(id);
            matches!(name, "pre" | "h1" | "h2" | "h3" | "hr") || (name == "table" && !has_header)
        };
        if dom.below(table, &is_left_out).any(is_layout) {
            return None;
        }
        (columns > 1).then_some(Self { dom, captions, rows, has_header })
    }

    /// Whether the first row is a header.
    pub(super) const fn has_header(&self) -> bool {
        self.has_header
    }

    /// The rows, each with its cells in their columns. A row at a time: cells that stretch over others fill far more
    /// positions than a page has bytes.
    pub(super) fn rows(&self) -> impl Iterator<Item = TableRow> {
        // By column: in how many further rows a cell above stretches into it.
        let mut covered: Vec<usize> = Vec::new();
        self.rows.iter().filter(|row| !row.is_empty()).map(move |row| {
            let mut placed = TableRow { cells: Vec::with_capacity(row.len()), width: 0 };
            for id in row {
                placed.skip(&mut covered);
                let (across, down) = (self.span(*id, "colspan"), self.span(*id, "rowspan"));
                let end = (placed.width + across).min(MAX_COLUMNS);
                if placed.width < end {
                    placed.cells.push((placed.width, *id));
                }
                covered.resize(covered.len().max(end), 0);
                if let Some(columns) = covered.get_mut(placed.width..end) {
                    columns.fill(down - 1);
                }
                placed.width = placed.width.max(end);
            }
            placed.skip(&mut covered);
            placed
        })
    }

    fn span(&self, cell: NodeId, name: &str) -> usize {
        match self.dom.content(cell) {
            Content::Element(..) => self.dom.attribute(cell, name).trim().parse().unwrap_or(1).clamp(1, MAX_SPAN),
            _ => 1,
        }
    }
}

/// A row of a table.
pub(super) struct TableRow {
    /// Each with its column.
    pub(super) cells: Vec<(usize, NodeId)>,
    /// Columns, with those at the end that a cell above stretches into.
    pub(super) width: usize,
}

impl TableRow {
    /// Passes the columns into which a cell above stretches.
    fn skip(&mut self, covered: &mut [usize]) {
        while let Some(left) = covered.get_mut(self.width).filter(|left| **left > 0) {
            *left -= 1;
            self.width += 1;
        }
    }
}
