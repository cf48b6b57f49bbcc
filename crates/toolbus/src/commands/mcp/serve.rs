//! `toolbus mcp serve --stdio`: the tools of the bus for one MCP client that starts its servers as child processes.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::caller::AgentName;
use toolbus_core::caller::IdentitySource;
use toolbus_core::events::Discard;
use toolbus_mcp_server::{McpServer, McpServerSettings};
use toolbus_protocol::topic;
use tracing::info;

use crate::app;
use crate::commands::target::{Operator, RoleArgs, TargetError};
use crate::config::{BusUrl, Config};
use crate::signals::Signals;
use toolbus_client::{Inbox, Sender};
use toolbus_remote::backend;

/// Time that the last messages get to leave.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// Serves one MCP client, as an agent on the bus.
#[derive(Debug, clap::Args)]
pub(super) struct McpServeArgs {
    /// Speak over standard input and output, for a client that starts its servers as child processes.
    #[arg(long)]
    stdio: bool,
    /// The agent that the client is: the header `rb-source`. Without it: `identity.agent`. A daemon with `identity.source =
    /// "broker"` believes the login of `bus.url` alone.
    #[arg(long, value_name = "AGENT", value_parser = AgentName::parse)]
    agent: Option<AgentName>,
    #[command(flatten)]
    role: RoleArgs,
    /// Queue that was made for this process, where its login may declare none: it must be bound to `tool.result.AGENT`,
    /// and to `tool.meta.tools.AGENT` to hear of changes.
    #[arg(long, value_name = "QUEUE")]
    answers: Option<String>,
}

/// Serves until the client goes away.
pub(super) async fn run(args: McpServeArgs, operator: &Operator) -> Result<ExitCode, TargetError> {
    if !args.stdio {
        let text = "give --stdio: the MCP server over HTTP is part of `toolbus serve`, at /mcp";
        return Err(TargetError::Usage(text.to_owned()));
    }
    let loaded = Config::load_for(&operator.sources, &["bus"]).map_err(TargetError::Mistakes)?;
    let mut config = loaded.config;
    if config.bus.url == BusUrl::Embedded {
        let text = "bus.url is \"embedded\", a bus inside one process, so that there is no daemon to reach: give the \
                    broker of `toolbus serve`, with --bus-url or the variable TOOLBUS__BUS__URL";
        return Err(TargetError::Usage(text.to_owned()));
    }
    let agent = agent(&args, &config)?;
    app::logging(&config, &app::redactor(&config), None)?;
    // It distinguishes connections.
    config.bus.name = format!("{}.{agent}", config.bus.name);
    serve(args, agent, &config).await
}

#[expect(clippy::disallowed_methods, reason = "the task waits for signals until the process ends")]
async fn serve(args: McpServeArgs, agent: AgentName, config: &Config) -> Result<ExitCode, TargetError> {
    let mut signals = Signals::listen()?;
    let closing = CancellationToken::new();
    let close = closing.clone();
    tokio::spawn(async move {
        let _ = signals.next().await;
        close.cancel();
        // A second signal ends the process at once.
        let _ = signals.next().await;
        std::process::exit(130);
    });
    let bus = app::bus(config)?;
    let remote = backend::BusBackend::start(Arc::clone(&bus), settings(args, &agent, config));
    let settings = McpServerSettings {
        name: "toolbus".to_owned(),
        version: crate::VERSION.to_owned(),
        max_body: usize::try_from(config.invoke.max_body.bytes()).unwrap_or(usize::MAX),
        clock: Clock::SYSTEM,
    };
    let server = McpServer::new(settings, Arc::new(remote.clone()), Arc::new(Discard), closing);
    let end = server.serve(Some(agent), tokio::io::stdin(), tokio::io::stdout()).await;
    info!(?end, "the client is served");
    remote.close(CLOSE_TIME).await;
    let _ = tokio::time::timeout(CLOSE_TIME, bus.close()).await;
    Ok(ExitCode::SUCCESS)
}

fn settings(args: McpServeArgs, agent: &AgentName, config: &Config) -> backend::BackendSettings {
    let RoleArgs { binding, profile } = args.role;
    let news = topic::tools_changed(agent.as_str());
    let inbox = match args.answers {
        None => Inbox::Own { topics: vec![news], max_body: usize::MAX, is_topic: false },
        Some(queue) => {
            let reply_to = format!("{}.{agent}", topic::TOOL_RESULT);
            Inbox::Given { queue, reply_to, topics: vec![news] }
        }
    };
    let topic = config.invoke.topics.first().map_or(topic::TOOL_INVOKE, String::as_str);
    backend::BackendSettings {
        topic: topic.to_owned(),
        sender: Sender {
            agent: Some(agent.clone()),
            login: config.bus.url.login(),
            binding,
            profile,
            ..Sender::default()
        },
        inbox,
        max_timeout: config.invoke.max_timeout.get(),
    }
}

/// The agent that the client is.
fn agent(args: &McpServeArgs, config: &Config) -> Result<AgentName, TargetError> {
    let configured = || config.identity.agent.clone();
    // The daemon knows better, but announcements use this name.
    let login = || (config.identity.source == IdentitySource::Broker).then(|| config.bus.url.login()).flatten();
    let known = || {
        let login = login()?;
        config.identity.users.get(&login).cloned().or_else(|| AgentName::parse(&login).ok())
    };
    args.agent.clone().or_else(configured).or_else(known).ok_or_else(|| {
        let text =
            "say which agent the client is, with --agent NAME: it gets what the rules of the daemon allow that agent";
        TargetError::Usage(text.to_owned())
    })
}
