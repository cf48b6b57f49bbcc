//! `toolbus demo`: the main job, seen at work, with nothing to install.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use axum::Router;
use axum::extract::RawQuery;
use axum::http::StatusCode;
use axum::routing::get;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use toolbus_core::Clock;
use url::form_urlencoded;

use super::Context;
use crate::config::bus::CompatQueues;
use crate::config::{BusUrl, Config, McpConfig, Override, Problems};
use crate::local_daemon::{LocalDaemon, LocalDaemonError};
use crate::terminal::OutputFormat;
use crate::terminal::ignore_broken_pipe;
use toolbus_client::{CallReply, Client, ClientError, ReplyContent};

/// Calls whose latency is measured.
const MEASURED: usize = 2_000;
/// Longest wait for the broker.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Time that the slow tool gets.
const SLOW_BUDGET: Duration = Duration::from_millis(300);

/// Shows real calls being answered: a good one, a REST one, and what mistakes get.
///
/// Runs on the embedded bus unless --bus-url or --config names a RabbitMQ broker. A small HTTP server on a free port of
/// 127.0.0.1 stands for the REST backend.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {}

/// Reason why the demonstration could not be given.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The HTTP server could not be started, or nothing can be printed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The demonstration's own configuration is refused.
    #[error("{0}")]
    Config(#[from] Problems),
    /// The bus could not be set up.
    #[error(transparent)]
    LocalDaemon(#[from] LocalDaemonError),
    /// No reply came.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A call did not get the expected reply.
    #[error("{0}: expected {1}, got {2}")]
    Unexpected(&'static str, &'static str, String),
}

/// One call to show: its title, the request, and the expected outcome.
struct Scene {
    title: &'static str,
    tool: &'static str,
    arguments: Value,
    budget: Duration,
    outcome: &'static str,
}

/// Runs the demonstration.
///
/// # Errors
///
/// If the demonstration's daemon does not start, or a call does not get the expected reply.
pub async fn run(_: DemoArgs, context: &Context) -> Result<ExitCode, DemoError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let backend = listener.local_addr()?;
    #[expect(clippy::disallowed_methods, reason = "the task is aborted below")]
    let server = tokio::spawn(async move { axum::serve(listener, weather_service()).await });
    let config = configuration(context, backend.port())?;

    let session = LocalDaemon::with_daemon(&config, None).await?;
    let shown = match context.output {
        OutputFormat::Table => show(&config, &session).await,
        OutputFormat::Json => report(&config, &session).await,
    };
    session.remove().await;
    server.abort();
    shown.map(|()| ExitCode::SUCCESS)
}

fn topic(config: &Config) -> &str {
    config.invoke.topics.first().map_or(toolbus_protocol::topic::TOOL_INVOKE, String::as_str)
}

/// The same calls for programs, as one JSON object.
async fn report(config: &Config, session: &LocalDaemon) -> Result<(), DemoError> {
    session.ready(CONNECT_TIME).await?;
    let client = Client::connect(session.bus(), topic(config), CONNECT_TIME).await?;
    let mut calls = Vec::new();
    for scene in scenes() {
        let request = client.request(scene.tool, scene.arguments.as_object(), Some(scene.budget), None);
        let begun = Clock::SYSTEM.now();
        let reply = client.send(&request, scene.budget + CONNECT_TIME).await?;
        let elapsed = Clock::SYSTEM.since(begun);
        let body = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap_or_default();
        calls.push(json!({
            "title": scene.title,
            "request": body(&request.body),
            "answer": body(&reply.body),
            "outcome": scene.check(&reply)?,
            "milliseconds": elapsed.as_secs_f64() * 1e3,
        }));
    }
    let report = json!({"bus": config.bus.url, "topic": topic(config), "calls": calls});
    Ok(ignore_broken_pipe(writeln!(io::stdout(), "{report:#}"))?)
}

async fn show(config: &Config, session: &LocalDaemon) -> Result<(), DemoError> {
    let topic = topic(config);
    session.ready(CONNECT_TIME).await?;
    let client = Client::connect(session.bus(), topic, CONNECT_TIME).await?;
    let bold = Style::new().bold();
    print(format_args!(
        "{bold}Toolbus on {}{bold:#}: requests go to topic `{topic}`, as an agent's would.\n",
        config.bus.url
    ))?;
    for scene in scenes() {
        play(&client, &scene).await?;
    }
    measure(&client).await?;
    farewell(&config.bus.url)
}

async fn play(client: &Client, scene: &Scene) -> Result<(), DemoError> {
    let (bold, dimmed) = (Style::new().bold(), Style::new().dimmed());
    let request = client.request(scene.tool, scene.arguments.as_object(), Some(scene.budget), None);
    print(format_args!("{bold}{}{bold:#}", scene.title))?;
    print(format_args!("  {dimmed}→{dimmed:#} {}", String::from_utf8_lossy(&request.body)))?;
    let begun = Clock::SYSTEM.now();
    let reply = client.send(&request, scene.budget + CONNECT_TIME).await?;
    let elapsed = Clock::SYSTEM.since(begun);
    let outcome = outcome(&reply);
    let colour = if outcome == "ok" { AnsiColor::Green } else { AnsiColor::Yellow }.on_default();
    print(format_args!("  {dimmed}←{dimmed:#} {}", String::from_utf8_lossy(&reply.body)))?;
    print(format_args!(
        "  {colour}{outcome}{colour:#} {dimmed}after {:.1} ms{dimmed:#}\n",
        elapsed.as_secs_f64() * 1e3
    ))?;
    scene.check(&reply).map(drop)
}

impl Scene {
    /// The outcome, if it is the expected one.
    fn check(&self, reply: &CallReply) -> Result<String, DemoError> {
        let outcome = outcome(reply);
        if outcome == self.outcome {
            Ok(outcome)
        } else {
            Err(DemoError::Unexpected(self.title, self.outcome, outcome))
        }
    }
}

/// Calls one after the other, so that each latency is one whole way there and back.
async fn measure(client: &Client) -> Result<(), DemoError> {
    let arguments: Map<String, Value> = [("text".to_owned(), json!("hello"))].into_iter().collect();
    let bar = ProgressBar::new(MEASURED as u64).with_message("measuring");
    if let Ok(style) = ProgressStyle::with_template("{msg} {bar:32} {pos}/{len} calls") {
        bar.set_style(style);
    }
    let mut latencies = Vec::with_capacity(MEASURED);
    for _ in 0..MEASURED {
        let request = client.request("echo", Some(&arguments), Some(CONNECT_TIME), None);
        let begun = Clock::SYSTEM.now();
        client.send(&request, CONNECT_TIME).await?;
        latencies.push(Clock::SYSTEM.since(begun));
        bar.inc(1);
    }
    bar.finish_and_clear();
    latencies.sort_unstable();
    let total: Duration = latencies.iter().sum();
    let percentile = |share: usize| latencies.get((MEASURED - 1) * share / 100).copied().unwrap_or_default();
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    print(format_args!(
        "Latency of {MEASURED} calls of `echo`, one at a time: p50 {:.3} ms, p95 {:.3} ms, p99 {:.3} ms ({:.0} calls/s).",
        milliseconds(percentile(50)),
        milliseconds(percentile(95)),
        milliseconds(percentile(99)),
        MEASURED as f64 / total.as_secs_f64(),
    ))?;
    if cfg!(debug_assertions) {
        print(format_args!("This is a debug build; one with `--release` is some ten times faster."))?;
    }
    Ok(())
}

fn farewell(url: &BusUrl) -> Result<(), DemoError> {
    match url {
        BusUrl::Embedded => print(format_args!(
            "\nThe same against RabbitMQ, where any AMQP client can take part:\n  toolbus demo --bus-url amqp://guest:guest@127.0.0.1:5672/%2f"
        )),
        BusUrl::Amqp(_) => print(format_args!(
            "\nThe daemon of this demonstration ends, and its queues and exchanges go with it. Start one to keep:\n  toolbus serve --bus-url amqp://USER:PASSWORD@HOST:5672/%2f"
        )),
    }
    .map_err(DemoError::from)
}

fn scenes() -> Vec<Scene> {
    let second = Duration::from_secs(10);
    let scene = |title, tool, arguments, budget, outcome| Scene { title, tool, arguments, budget, outcome };
    vec![
        scene("A good call", "echo", json!({"text": "hello, bus"}), second, "ok"),
        scene(
            "A local tool",
            "convert_time",
            json!({"datetime": "2026-07-01T09:00:00", "from_timezone": "America/Bogota", "to_timezone": "Europe/Berlin"}),
            second,
            "ok",
        ),
        scene(
            "A REST call, to the HTTP server that this command started",
            "get_weather",
            json!({"city": "San José"}),
            second,
            "ok",
        ),
        scene(
            "The backend says no: an answer of the tool, not a failure of the bus",
            "get_weather",
            json!({"city": "Atlantis"}),
            second,
            "error",
        ),
        scene("Bad arguments", "get_weather", json!({"town": 7}), second, "invalid_arguments"),
        scene("An unknown tool", "get_wether", json!({}), second, "tool_not_found"),
        scene("A slow tool, and a caller who grants 300 ms", "slow_report", json!({}), SLOW_BUDGET, "timeout"),
    ]
}

fn outcome(reply: &CallReply) -> String {
    match &reply.content {
        ReplyContent::Result(result) if result.is_error => "error".to_owned(),
        ReplyContent::Result(_) => "ok".to_owned(),
        ReplyContent::Error(error) => error.code.to_string(),
    }
}

/// The named configuration, with the demonstration's tools on top.
fn configuration(context: &Context, port: u16) -> Result<Config, Problems> {
    let mut sources = context.sources.clone();
    let parameters =
        r#"{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false}"#;
    let endpoints = format!(
        r#"[
            {{ name = "get_weather", description = "Current weather of a city", url = "http://127.0.0.1:{port}/weather?city={{city}}", parameters = '{parameters}', effect = "read-only" }},
            {{ name = "slow_report", description = "A report that takes a minute", url = "http://127.0.0.1:{port}/slow", effect = "read-only" }},
        ]"#
    );
    // On a shared broker, the demonstration has its own names: it must not take the calls of others.
    let settings = [
        ("bus.exchange", "toolbus.demo"),
        ("bus.dead_letter_exchange", "toolbus.demo.dlx"),
        ("bus.queue_prefix", "toolbus-demo"),
        ("tools.echo", "true"),
        ("tools.time", "true"),
        ("tools.required", "[]"),
        ("rest.endpoints", &endpoints),
    ];
    for (key, value) in settings {
        sources.overrides.push(Override::new(key, value));
    }
    let mut config = Config::load(&sources)?.config;
    // An override adds entries and takes none away.
    config.tools.limits.clear();
    // No second process of a server that the daemon runs, and none of the queues that it takes over from a bridge.
    config.mcp = McpConfig::default();
    config.bus.compat_queues = CompatQueues::default();
    Ok(config)
}

/// The backend: knows the weather everywhere but in Atlantis, and takes a minute for a report.
fn weather_service() -> Router {
    async fn weather(RawQuery(query): RawQuery) -> (StatusCode, String) {
        let query = query.unwrap_or_default();
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        match pairs.find(|(name, _)| name == "city") {
            Some((_, city)) if city != "Atlantis" => {
                (StatusCode::OK, json!({"city": city, "celsius": 21.5, "sky": "clear"}).to_string())
            }
            _ => (StatusCode::NOT_FOUND, "no such city".to_owned()),
        }
    }
    async fn slow() -> &'static str {
        tokio::time::sleep(Duration::from_secs(60)).await;
        "the report"
    }
    Router::new().route("/weather", get(weather)).route("/slow", get(slow))
}

fn print(text: std::fmt::Arguments<'_>) -> io::Result<()> {
    ignore_broken_pipe(writeln!(anstream::stdout(), "{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sources;

    #[test]
    fn the_demonstration_has_its_tools_with_any_configuration() {
        let overrides = vec![
            Override::new("tools.time", "false"),
            Override::new("tools.echo", "true"),
            Override::new("tools.required", r#"["echo"]"#),
            Override::new("tools.limits.echo.timeout", "1ms"),
        ];
        let sources = Sources { overrides, ..Sources::default() };
        let context = Context { config: Config::default(), sources, output: OutputFormat::Table, warnings: Vec::new() };
        let tools = configuration(&context, 1).unwrap().tools;
        assert!(tools.time && tools.echo && tools.required.is_empty() && tools.limits.is_empty(), "{tools:?}");
    }

    #[test]
    fn the_demonstration_has_neither_the_servers_nor_the_queues_of_the_daemon() {
        let overrides = vec![
            Override::new("daemon.roles", r#"["invoke", "mcp"]"#),
            Override::new("bus.compat_queues.mcp", "rockbot.mcp-bridge.RockBot"),
            Override::new("bus.compat_queues.mcp-refresh", "rockbot.mcp-bridge.RockBot.refresh"),
            Override::new("mcp.servers.files.command", "true"),
            Override::new("mcp.required", r#"["files"]"#),
        ];
        let sources = Sources { overrides, ..Sources::default() };
        let context = Context { config: Config::default(), sources, output: OutputFormat::Table, warnings: Vec::new() };
        let config = configuration(&context, 1).unwrap();
        assert_eq!((config.bus.compat_queues, config.mcp), Default::default());
    }
}
