//! The tables of `docs/telemetry.md`.

use std::collections::{BTreeMap, BTreeSet};

const PAGE: &str = include_str!("../../../../docs/telemetry.md");

/// One row of the table of metrics.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MetricRow {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) unit: String,
    pub(crate) bounds: Vec<f64>,
}

/// One row of the table of spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpanRow {
    pub(crate) name: String,
    pub(crate) kind: String,
}

/// One attribute of one metric or span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttributeRow {
    pub(crate) owner: String,
    pub(crate) key: String,
    /// Every value; absent when the set is open.
    pub(crate) values: Option<BTreeSet<String>>,
    pub(crate) always: bool,
}

pub(crate) fn metrics() -> Vec<MetricRow> {
    let row = |cells: Vec<&str>| MetricRow {
        name: code(cells[0]),
        kind: cells[1].to_owned(),
        unit: code(cells[2]),
        bounds: cells[3].split(", ").filter_map(|bound| bound.parse().ok()).collect(),
    };
    rows("| Metric |").into_iter().map(row).collect()
}

pub(crate) fn spans() -> Vec<SpanRow> {
    let row = |cells: Vec<&str>| SpanRow { name: code(cells[0]), kind: cells[1].to_owned() };
    rows("| Span |").into_iter().map(row).collect()
}

pub(crate) fn metric_attributes() -> Vec<AttributeRow> {
    attributes("| Metrics |")
}

pub(crate) fn span_attributes() -> Vec<AttributeRow> {
    attributes("| Spans |")
}

pub(crate) fn resource_attributes() -> BTreeSet<String> {
    rows("| Resource attribute |").into_iter().map(|cells| code(cells[0])).collect()
}

fn attributes(heading: &str) -> Vec<AttributeRow> {
    let sets = closed_sets();
    let each = |cells: Vec<&str>| {
        let values = values(cells[2], &sets);
        let (key, always) = (code(cells[1]), cells[3] == "always");
        let owners: Vec<String> = cells[0].split(", ").map(code).collect();
        owners.into_iter().map(move |owner| AttributeRow { owner, key: key.clone(), values: values.clone(), always })
    };
    rows(heading).into_iter().flat_map(each).collect()
}

fn closed_sets() -> BTreeMap<String, BTreeSet<String>> {
    let row = |cells: Vec<&str>| (cells[0].trim_matches('*').to_owned(), cells[1].split(", ").map(code).collect());
    rows("| Set |").into_iter().map(row).collect()
}

/// A cell of literal values, or of one closed set; `None` when anything else is in it.
fn values(cell: &str, sets: &BTreeMap<String, BTreeSet<String>>) -> Option<BTreeSet<String>> {
    if let Some(set) = cell.strip_prefix('*').and_then(|rest| rest.strip_suffix('*')) {
        return Some(sets.get(set).unwrap_or_else(|| panic!("no closed set `{set}`")).clone());
    }
    let parts: Vec<&str> = cell.split(", ").collect();
    parts.iter().all(|part| part.starts_with('`')).then(|| parts.into_iter().map(code).collect())
}

fn code(cell: &str) -> String {
    let inner = cell.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
    inner.unwrap_or_else(|| panic!("`{cell}` should be code")).to_owned()
}

/// The rows of the one table whose head begins so.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let mut lines = PAGE.lines().skip_while(|line| !line.starts_with(heading));
    assert!(lines.next().is_some() && lines.next().is_some_and(|rule| rule.starts_with("|---")), "no table {heading}");
    let table = lines.take_while(|line| line.starts_with('|'));
    let rows: Vec<Vec<&str>> = table.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect();
    assert!(!rows.is_empty(), "the table {heading} is empty");
    rows
}
