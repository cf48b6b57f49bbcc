//! The view as a screen, and as text and JSON without a terminal.

use std::ops::Range;

use comfy_table::presets::NOTHING;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row as Cells, Table, TableState};
use serde_json::{Value, json};

use super::rates::Figures;
use super::state::{Column, Row, State};
use crate::commands::{one_line, plain, trace};

const KEYS: &str = "t a s group   < > o sort   / filter   enter open   esc back   p pause   ? help   q quit";
const HELP: &str = "\
t a s      group by tool, by agent, by source of tools (tab: the next one)
< >        sort by the column to the left, to the right
o          reverse the order
/          show only names with a text; esc shows all again
up down    select a row
enter      open the selected row: a tool's agents, an agent's or a source's tools, then their recent calls
esc        back
p          pause, and go on
q          quit

CALLS/S, ERRORS, P50 and P95 are of the calls that ended in the last 10 s; an error is every end but `ok`.
IN FLIGHT is known of the busiest tools and agents.";

/// Widths of the columns of figures.
const WIDTH: u16 = 11;
/// Header of recent calls, and widths of their columns: an id of 32 characters is whole on a screen of 80.
const CALLS: [(&str, Constraint); 6] = [
    ("ARRIVED", Constraint::Length(12)),
    ("STATUS", Constraint::Length(20)),
    ("TOOK", Constraint::Length(11)),
    ("CALL", Constraint::Length(32)),
    ("AGENT", Constraint::Fill(1)),
    ("TOOL", Constraint::Fill(1)),
];
/// The time of day in a time as RFC 3339 has it.
const TIME_OF_DAY: Range<usize> = 11..23;

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State, coloured: bool) {
    let line = Constraint::Length(1);
    let areas = [Constraint::Length(2), line, line, Constraint::Fill(1), line];
    let [head, _, title, body, foot] = Layout::vertical(areas).areas(frame.area());
    let red = if coloured { Style::new().fg(Color::Red) } else { Style::new() };
    let is_ill = state.failure.is_some() || !state.health.blockers.is_empty();
    let first = Line::styled(daemon(state), if is_ill { red } else { Style::new() });
    frame.render_widget(Paragraph::new(vec![first, Line::raw(summary(state))]), head);
    frame.render_widget(Line::styled(state.title(), Modifier::BOLD), title);
    match (&state.calls, state.shows_help) {
        (_, true) => frame.render_widget(Paragraph::new(HELP), body),
        (Some(calls), _) => {
            let header = Cells::new(CALLS.map(|(name, _)| name)).style(Modifier::BOLD);
            let rows = calls.iter().map(|call| {
                let [arrived, agent, tool, status, took, id] = trace::cells(call);
                let time = arrived.get(TIME_OF_DAY).unwrap_or(&arrived).to_owned();
                Cells::new([time, status, took, id, agent, tool])
            });
            frame.render_widget(Table::new(rows, CALLS.map(|(_, width)| width)).header(header), body);
        }
        (None, _) => draw_rows(frame, state, red, body),
    }
    let failed = state.failure.is_some() && !state.is_typing;
    frame.render_widget(Line::styled(footer(state), if failed { red } else { Style::new() }), foot);
}

fn draw_rows(frame: &mut Frame<'_>, state: &State, red: Style, area: Rect) {
    let rows = state.rows();
    let cells = |row: &Row| {
        let has_errors = row.figures.errors_percent.is_some_and(|errors| errors > 0.0);
        Cells::new(cells(row)).style(if has_errors { red } else { Style::new() })
    };
    let header = Column::ALL.map(|column| match column == state.sort {
        true => format!("{} {}", heading(column), if state.is_reversed { '↑' } else { '↓' }),
        false => heading(column).to_owned(),
    });
    let widths = Column::ALL.map(|column| match column {
        Column::Name => Constraint::Fill(1),
        _ => Constraint::Length(WIDTH),
    });
    let table = Table::new(rows.iter().map(cells), widths).header(Cells::new(header).style(Modifier::BOLD));
    let mut selected = TableState::new().with_selected(state.selected(&rows));
    frame.render_stateful_widget(table.row_highlight_style(Modifier::REVERSED), area, &mut selected);
}

/// The view as text.
pub(super) fn text(state: &State) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(NOTHING).set_header(Column::ALL.map(heading));
    state.rows().iter().for_each(|row| {
        table.add_row(cells(row));
    });
    format!("{}\n{}\n\n{}", daemon(state), summary(state), plain(&table))
}

/// The view as JSON.
pub(super) fn as_value(state: &State) -> Value {
    let (in_flight, waiting) = state.window.present();
    json!({
        "ready": state.health.blockers.is_empty(),
        "seconds": state.window.seconds(),
        "inFlight": in_flight,
        "waiting": waiting,
        "all": state.window.whole(),
        "by": state.grouping.name(),
        "rows": state.rows(),
    })
}

fn daemon(state: &State) -> String {
    let health = match state.health.blockers.as_slice() {
        _ if state.failure.is_some() => "does not answer".to_owned(),
        [] => "ready".to_owned(),
        blockers => format!("not ready: {}", blockers.join("; ")),
    };
    one_line(&format!("toolbus {} on {}: {health}", state.health.version, state.address))
}

fn summary(state: &State) -> String {
    let Figures { calls_per_second, errors_percent, p50_ms, p95_ms } = state.window.whole();
    let (in_flight, waiting) = state.window.present();
    let figures = [
        format!("{calls_per_second:.1} calls/s"),
        format!("{in_flight} in flight"),
        format!("{waiting} waiting"),
        format!("errors {}", percent(errors_percent)),
        format!("p50 {}", time(p50_ms)),
        format!("p95 {}", time(p95_ms)),
    ];
    figures.join("   ")
}

fn footer(state: &State) -> String {
    if state.is_typing {
        return format!("/{}_   (enter: keep, esc: show all)", state.filter);
    }
    if let Some(failure) = &state.failure {
        return format!("no answer for {} s: {}", state.silence().as_secs(), one_line(failure));
    }
    if state.is_paused { format!("paused: p goes on   {KEYS}") } else { KEYS.to_owned() }
}

const fn heading(column: Column) -> &'static str {
    match column {
        Column::Name => "NAME",
        Column::Rate => "CALLS/S",
        Column::InFlight => "IN FLIGHT",
        Column::Errors => "ERRORS",
        Column::P50 => "P50",
        Column::P95 => "P95",
    }
}

fn cells(row: &Row) -> [String; 6] {
    let Figures { calls_per_second, errors_percent, p50_ms, p95_ms } = row.figures;
    [
        one_line(&row.name),
        format!("{calls_per_second:.1}"),
        row.in_flight.map(|running| running.to_string()).unwrap_or_default(),
        percent(errors_percent),
        time(p50_ms),
        time(p95_ms),
    ]
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{share:.1} %"))
}

fn time(milliseconds: Option<f64>) -> String {
    match milliseconds {
        None => "-".to_owned(),
        Some(time) if time < 10.0 => format!("{time:.1} ms"),
        Some(time) if time < 1_000.0 => format!("{time:.0} ms"),
        Some(time) => format!("{:.1} s", time / 1_000.0),
    }
}
