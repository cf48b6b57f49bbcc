//! The loop of the live view: keys, polls, signals and drawing.

use std::io::{self, Stdout, stdout};
use std::mem::ManuallyDrop;
use std::panic;
use std::time::Duration;

use axum::http::Method;
use crossterm::cursor::Show;
use crossterm::event::{Event, EventStream, KeyEventKind};
use crossterm::execute;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use futures_util::StreamExt as _;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::state::{DaemonState, KeyEffect, State};
use super::{PATIENCE, poll, view};
use crate::http::admin::client::{AdminClient, AdminClientError};
use crate::http::admin::recent::RecentFound;
use crate::http::admin::view::CallRates;
use crate::signals::Signals;

/// A response of the daemon.
enum Polled {
    Rates(Result<(CallRates, DaemonState), AdminClientError>),
    /// Recent calls of a query.
    Calls(String, Result<RecentFound, AdminClientError>),
}

/// Shows the view until the operator quits or a signal ends it.
///
/// # Errors
///
/// If the terminal cannot be used.
pub(super) async fn run(client: AdminClient, interval: Duration, mut state: State) -> io::Result<()> {
    let coloured = anstream::AutoStream::choice(&stdout()) != anstream::ColorChoice::Never;
    let mut signals = Signals::listen()?;
    let mut screen = Screen::open()?;
    let mut events = EventStream::new();
    let mut polls = JoinSet::new();
    let mut ticks = tokio::time::interval(interval);
    // The first tick is immediate, and the daemon has just been polled.
    ticks.tick().await;
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        screen.terminal.draw(|frame| view::draw(frame, &state, coloured))?;
        let action = tokio::select! {
            biased;
            // Also that of a terminal which is closed.
            _ = signals.next() => KeyEffect::Quit,
            event = events.next() => match event {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => state.press(key),
                Some(Ok(_)) => KeyEffect::Draw,
                Some(Err(error)) => return Err(error),
                None => KeyEffect::Quit,
            },
            Some(polled) = polls.join_next() => {
                match polled {
                    Ok(Polled::Rates(response)) => state.polled(response.map_err(|error| error.to_string())),
                    Ok(Polled::Calls(query, Ok(found))) => state.found(&query, found.calls),
                    // The figures, which are polled as well, have the error.
                    Ok(Polled::Calls(_, Err(_))) => {}
                    Err(error) => panic::resume_unwind(error.into_panic()),
                }
                KeyEffect::Draw
            }
            _ = ticks.tick() => {
                if !state.is_paused && polls.is_empty() {
                    let client = client.clone();
                    polls.spawn(async move { Polled::Rates(poll(&client).await) });
                    KeyEffect::Calls
                } else {
                    KeyEffect::Draw
                }
            }
        };
        match (action, state.query()) {
            (KeyEffect::Quit, _) => return Ok(()),
            (KeyEffect::Calls, Some(query)) => {
                let client = client.clone();
                polls.spawn(async move {
                    let path = format!("/v1/calls?{query}");
                    let found = client.send_within(PATIENCE, Method::GET, &path).await;
                    Polled::Calls(query, found)
                });
            }
            _ => {}
        }
    }
}

/// The terminal in raw mode and on its alternate screen, until this is dropped or anything panics.
struct Screen {
    // Its drop prints to a terminal that may be closed, and panics then.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
}

impl Screen {
    fn open() -> io::Result<Self> {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            restore();
            hook(panic);
        }));
        let terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
        let screen = Self { terminal: ManuallyDrop::new(terminal) };
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal, as far as there still is one.
fn restore() {
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
}
