//! The view of fixed totals, and the effect of keys.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use toolbus_telemetry::{CallSeries, CallTotals};

use super::state::{Column, KeyEffect};
use super::*;
use crate::http::admin::recent::CallTrace;

/// A poll at a second, of calls by tool, agent, status and bucket; the bounds are 10 and 100 ms.
pub(super) fn totals(second: u32, calls: &[(&str, &str, &str, [u64; 3])]) -> CallRates {
    let series = |(tool, agent, status, buckets): &(&str, &str, &str, [u64; 3])| CallSeries {
        agent: (*agent).to_owned(),
        tool: (*tool).to_owned(),
        source: format!("mcp:{tool}"),
        status: (*status).to_owned(),
        count: buckets.iter().sum(),
        buckets: buckets.to_vec(),
    };
    let series = calls.iter().map(series).collect();
    let totals = CallTotals { bounds_ms: vec![10.0, 100.0], series, in_flight: 2, waiting: 1 };
    CallRates { at: format!("2026-01-01T00:00:{second:02}.000Z"), totals }
}

fn health(blockers: &[&str]) -> DaemonState {
    DaemonState {
        version: "1.2.3".to_owned(),
        blockers: blockers.iter().map(|text| (*text).to_owned()).collect(),
        tools: [("echo".to_owned(), 2)].into(),
        agents: [("ana".to_owned(), 1), ("bob".to_owned(), 1)].into(),
    }
}

/// The view of ten seconds: a hundred calls of ana, of bob some that fail, and none of the idle tool.
fn state(clock: Clock) -> State {
    let mut state = State::new("the socket `s`".to_owned(), Grouping::Tool, clock);
    let idle = ("idle", "ana", "ok", [7, 0, 0]);
    state.polled(Ok((totals(0, &[idle, ("echo", "ana", "ok", [5, 0, 0])]), health(&[]))));
    let calls = [
        idle,
        ("echo", "ana", "ok", [105, 0, 0]),
        ("echo", "bob", "ok", [0, 15, 0]),
        ("echo", "bob", "timeout", [0, 0, 5]),
        ("get\u{1b}[31m", "bob", "ok", [0, 20, 0]),
    ];
    state.polled(Ok((totals(10, &calls), health(&[]))));
    state
}

fn press(state: &mut State, keys: &str) -> KeyEffect {
    let code = |key| match key {
        '\n' => KeyCode::Enter,
        '\t' => KeyCode::Tab,
        '\u{1b}' => KeyCode::Esc,
        'v' => KeyCode::Down,
        key => KeyCode::Char(key),
    };
    let press = |key| state.press(KeyEvent::new(code(key), KeyModifiers::NONE));
    keys.chars().map(press).last().unwrap()
}

fn drawn(state: &State) -> String {
    let mut terminal = Terminal::new(TestBackend::new(92, 10)).unwrap();
    terminal.draw(|frame| view::draw(frame, state, false)).unwrap();
    let lines = terminal.backend().to_string();
    lines.lines().map(|line| line.trim_matches('"').trim_end()).collect::<Vec<_>>().join("\n")
}

fn names(state: &State) -> Vec<String> {
    state.rows().into_iter().map(|row| row.name).collect()
}

#[test]
fn the_screen_has_the_daemon_the_sums_and_a_row_for_each_tool() {
    insta::assert_snapshot!(drawn(&state(Clock::manual())), @r"
    toolbus 1.2.3 on the socket `s`: ready
    14.0 calls/s   2 in flight   1 waiting   errors 3.6 %   p50 7.0 ms   p95 95 ms

    by tool
    NAME                             CALLS/S ↓   IN FLIGHT   ERRORS      P50         P95
    echo                             12.0        2           4.2 %       6.0 ms      94 ms
    get\u{1b}[31m                    2.0                     0.0 %       55 ms       96 ms
    idle                             0.0                     -           -           -

    t a s group   < > o sort   / filter   enter open   esc back   p pause   ? help   q quit
    ");
}

#[test]
fn without_a_screen_the_same_is_text_and_json() {
    let state = state(Clock::manual());
    insta::assert_snapshot!(view::text(&state), @r"
    toolbus 1.2.3 on the socket `s`: ready
    14.0 calls/s   2 in flight   1 waiting   errors 3.6 %   p50 7.0 ms   p95 95 ms

    NAME           CALLS/S  IN FLIGHT  ERRORS  P50     P95
    echo           12.0     2          4.2 %   6.0 ms  94 ms
    get\u{1b}[31m  2.0                 0.0 %   55 ms   96 ms
    idle           0.0                 -       -       -
    ");
    let json = view::as_value(&state);
    assert_eq!([&json["by"], &json["rows"][0]["name"], &json["rows"][1]["name"]], ["tool", "echo", "get\u{1b}[31m"]);
    assert_eq!(json["all"]["callsPerSecond"], 14.0);
    assert_eq!([&json["rows"][0]["inFlight"], &json["rows"][2]["p50Ms"]], [&2.into(), &serde_json::Value::Null]);
}

#[test]
fn a_silent_daemon_leaves_its_last_figures() {
    let clock = Clock::manual();
    let mut state = state(clock);
    clock.advance(Duration::from_secs(12));
    state.polled(Err("no daemon answers\u{7}".to_owned()));
    let lines = drawn(&state);
    assert!(lines.starts_with("toolbus 1.2.3 on the socket `s`: does not answer\n"), "{lines}");
    assert!(
        lines.contains("14.0 calls/s") && lines.ends_with("no answer for 12 s: no daemon answers\\u{7}"),
        "{lines}"
    );
    state.polled(Ok((totals(12, &[]), health(&["the bus has ended"]))));
    let lines = drawn(&state);
    assert!(lines.contains("not ready: the bus has ended") && !lines.contains("no answer"), "{lines}");
}

#[test]
fn keys_choose_the_grouping() {
    let mut state = state(Clock::manual());
    press(&mut state, "a");
    assert_eq!(names(&state), ["ana", "bob"]);
    press(&mut state, "\t");
    assert_eq!(state.title(), "by source");
    press(&mut state, "\t");
    assert_eq!(state.title(), "by tool");
}

#[test]
fn keys_choose_the_order() {
    let mut state = state(Clock::manual());
    press(&mut state, ">>>");
    assert_eq!((state.sort, names(&state)[0].as_str()), (Column::P50, "get\u{1b}[31m"));
    press(&mut state, "o");
    assert_eq!(names(&state)[0], "idle");
    press(&mut state, "o<<<<");
    assert_eq!(state.sort, Column::Name);
    assert_eq!(names(&state), ["echo", "get\u{1b}[31m", "idle"]);
    press(&mut state, "<");
    assert_eq!(state.sort, Column::P95);
}

#[test]
fn a_filter_is_typed_kept_and_removed() {
    let mut state = state(Clock::manual());
    press(&mut state, "/Eq");
    assert!(drawn(&state).ends_with("/Eq_   (enter: keep, esc: show all)"));
    state.press(KeyEvent::new(KeyCode::Backspace, KeyModifiers::NONE));
    press(&mut state, "\n");
    assert_eq!((names(&state).len(), state.title().as_str()), (3, "by tool, with \"E\""));
    press(&mut state, "/ch\n");
    assert_eq!(names(&state), ["echo"]);
    press(&mut state, "\u{1b}");
    assert_eq!(names(&state).len(), 3);
}

#[test]
fn a_tool_opens_into_its_agents_and_an_agent_into_recent_calls() {
    let mut state = state(Clock::manual());
    assert_eq!(press(&mut state, "\n"), KeyEffect::Draw);
    assert_eq!((state.title().as_str(), names(&state)), ("tool echo > by agent", vec!["ana".into(), "bob".into()]));
    assert_eq!(press(&mut state, "v\n"), KeyEffect::Calls);
    let query = state.query().unwrap();
    assert_eq!(query, "tool=echo&agent=bob&limit=50");
    let call = CallTrace {
        arrived: "2026-01-01T00:00:09.500Z".to_owned(),
        status: "timeout".to_owned(),
        ..CallTrace::default()
    };
    state.found("tool=other&limit=50", vec![call.clone(), call.clone()]);
    state.found(&query, vec![call]);
    let lines = drawn(&state);
    assert!(lines.contains("tool echo > agent bob > recent calls"), "{lines}");
    assert_eq!(lines.matches("00:00:09.500 timeout").count(), 1, "{lines}");
    press(&mut state, "\u{1b}");
    assert_eq!((state.title().as_str(), state.selected(&state.rows())), ("tool echo > by agent", 1));
    press(&mut state, "\u{1b}\u{1b}");
    assert_eq!((state.title().as_str(), state.query()), ("by tool", None));
}

#[test]
fn a_source_opens_into_its_tools() {
    let mut state = state(Clock::manual());
    press(&mut state, "s\n");
    assert_eq!((state.title().as_str(), names(&state)), ("source mcp:echo > by tool", vec!["echo".to_owned()]));
}

#[test]
fn the_selected_row_stays_so_when_the_order_changes() {
    let mut state = state(Clock::manual());
    press(&mut state, "v");
    assert_eq!(state.selected(&state.rows()), 1);
    press(&mut state, ">>>");
    assert_eq!(state.selected(&state.rows()), 0);
    press(&mut state, "vvvvv");
    assert_eq!(state.selected(&state.rows()), 2);
}

#[test]
fn help_is_shown_until_the_next_key() {
    let mut state = state(Clock::manual());
    press(&mut state, "?");
    assert!(drawn(&state).contains("group by tool, by agent, by source"));
    assert_eq!(press(&mut state, "q"), KeyEffect::Draw);
    assert_eq!(press(&mut state, "q"), KeyEffect::Quit);
}
