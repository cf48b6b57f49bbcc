//! The two sides, each a process of its own.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::process::Stdio;

use crate::broker::load::{AGENT, TEXT};
use crate::broker::site::BrokerSetup;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::others::OtherDaemon;
use super::{BARE, Sink, topic};
use crate::args::MeasureArgs;
use crate::daemon::{Daemon, START_TIME, free_address, this_program, toolbus};
use crate::error::MeasureError;
use crate::errors::Errors;
use toolbus::commands::Context;

/// Text that the bare responder prints once it listens.
pub(super) const READY: &str = "ready";
/// Patterns of each agent, where there are rules for agents.
const PATTERNS: usize = 200;

/// The bare responder.
pub(super) struct Floor {
    child: Child,
    _errors: Errors,
}

impl Floor {
    pub(super) async fn start(site: &BrokerSetup, queue: &str, context: &Context) -> Result<Self, MeasureError> {
        let mut child = on(site, this_program()?)
            .args(["--responder", queue])
            .args(["--set", &format!("bus.exchange={}", site.exchange)])
            .args(["--set", &format!("bus.queue_type={}", site.queue_type)])
            .args(["--set", &format!("invoke.max_in_flight={}", context.config.invoke.max_in_flight)])
            .args(["--set", &format!("invoke.max_waiting={}", context.config.invoke.max_waiting)])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut errors = Errors::of(&mut child);
        let output = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
        let line = tokio::time::timeout(START_TIME, BufReader::new(output).lines().next_line()).await;
        if matches!(line, Ok(Ok(Some(ref text))) if text == READY) {
            return Ok(Self { child, _errors: errors });
        }
        let _ = child.kill().await;
        Err(MeasureError::Start(BARE, errors.last_words().await))
    }

    pub(super) fn process(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    /// Kills the process, which holds nothing that must be finished.
    pub(super) async fn stop(&mut self) {
        let _ = self.child.kill().await;
    }
}

/// A daemon on this broker, with `id`; `other` is what distinguishes it from the one that only replies.
pub(super) async fn start_daemon(
    site: &BrokerSetup,
    id: &str,
    other: Option<&OtherDaemon>,
    args: &MeasureArgs,
    sink: Option<&Sink>,
    context: &Context,
) -> Result<Daemon, MeasureError> {
    let address = free_address().await?;
    let mut command = on(site, toolbus()?);
    let mut text = configuration(site, id, address, args, sink, context);
    if let Some(OtherDaemon { environment, sections, .. }) = other {
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        text.push_str(sections);
    }
    if let Some(ratio) = args.trace_ratio {
        command.env("OTEL_TRACES_SAMPLER", "parentbased_traceidratio");
        command.env("OTEL_TRACES_SAMPLER_ARG", ratio.to_string());
    }
    Daemon::launch(command, id, address, &text).await
}

/// A program on this broker. The URL goes through the environment: a command line can be read by every user.
fn on(site: &BrokerSetup, mut program: Command) -> Command {
    program.env("TOOLBUS__BUS__URL", &site.url);
    program
}

fn configuration(
    site: &BrokerSetup,
    id: &str,
    address: SocketAddr,
    args: &MeasureArgs,
    sink: Option<&Sink>,
    context: &Context,
) -> String {
    let invoke = &context.config.invoke;
    let mut text = format!(
        r#"
[bus]
exchange = "{exchange}"
dead_letter_exchange = "{exchange}.dlx"
queue_prefix = "bench-{id}"
queue_type = "{queue_type}"
[invoke]
topics = ["{topic}"]
max_in_flight = {running}
max_waiting = {waiting}
[http]
listen = "{address}"
[daemon]
socket = "none"
[tools]
echo = true
[telemetry]
log = "warn"
"#,
        exchange = site.exchange,
        queue_type = site.queue_type,
        topic = topic(id),
        running = invoke.max_in_flight,
        waiting = invoke.max_waiting,
    );
    if let Some(sink) = sink {
        let _ = write!(text, "otlp_endpoint = \"{}\"\nprotocol = \"http/protobuf\"\n", sink.endpoint());
    }
    for number in 0..args.tools {
        let _ = write!(
            text,
            "[[rest.endpoints]]\nname = \"tool_{number}\"\ndescription = \"Never called\"\nurl = \"http://127.0.0.1:9/{number}\"\n"
        );
    }
    text.push_str(&policy(args));
    text
}

/// Rules for many agents, and for the one that calls: each step of the path of a call has something to decide.
fn policy(args: &MeasureArgs) -> String {
    let mut text = String::new();
    if args.agents == 0 || args.tools == 0 {
        return text;
    }
    text.push_str("[identity]\ntrust_headers = true\n[outbound.chat]\ntools = [\"e?ho\"]\nrecipients = [\"/text\"]\n");
    text.push_str("compare = \"exact\"\n");
    let others = (0..args.agents).map(|number| format!("agent-{number}"));
    for (number, agent) in std::iter::once(AGENT.to_owned()).chain(others).enumerate() {
        let tool = |pattern: usize| (number * 7 + pattern * 13) % usize::from(args.tools);
        let patterns: String = (1..PATTERNS).map(|pattern| format!(", \"tool_{}*\"", tool(pattern))).collect();
        let _ = write!(
            text,
            "[agents.{agent}]\nallowed_tools = [\"ech*\"{patterns}]\n\
             tool_rate_limits = {{ \"e*\" = {{ rps = 1000000.0, burst = 1000000 }} }}\n\
             outbound_allowlist = {{ chat = [\"{TEXT}\"] }}\n"
        );
    }
    text
}
