//! Single parts of an [`App`](super::App), also for commands that need no more than these.

use std::sync::Arc;

use toolbus_broker::embedded::Embedded;
use toolbus_broker::rabbitmq::{self, RabbitMq};
use toolbus_client::RemoteDaemons;
use toolbus_core::bus::Bus;
use toolbus_core::events::{Discard, WebEvents};
use toolbus_core::policy::{Capacity, PolicyHandle};
use toolbus_core::redact::Redactor;
use toolbus_core::registry::Registry;
use toolbus_core::toolsets::SessionSet;
use toolbus_core::{Clock, Gates};

use super::toolsets::in_sessions;
use super::{AppError, AppServers, agents, guides, memory, pipelines, schedule, scripts, subagents};
use crate::config::store::OpenStore;
use crate::config::{AmqpUrl, BusUrl, Config, secrets};
use crate::http::{McpAdmin, NoServers};

/// The bus of the configuration. It connects in the background, however long that takes.
///
/// # Errors
///
/// If a URL or a certificate cannot be used.
pub fn bus(config: &Config) -> Result<Arc<dyn Bus>, AppError> {
    Ok(match &config.bus.url {
        BusUrl::Embedded => Arc::new(Embedded::new()),
        BusUrl::Amqp(urls) => Arc::new(RabbitMq::start(broker_settings(config, urls))?),
    })
}

/// How the broker at these addresses is reached.
pub fn broker_settings(config: &Config, urls: &[AmqpUrl]) -> rabbitmq::RabbitMqSettings {
    let bus = &config.bus;
    rabbitmq::RabbitMqSettings {
        urls: urls.iter().map(|url| url.reveal().to_string()).collect(),
        name: bus.name.clone(),
        exchange: bus.exchange.clone(),
        dead_letter_exchange: bus.dead_letter_exchange.clone(),
        queue_type: bus.queue_type,
        tls: Some(bus.tls.clone()),
        clock: Clock::SYSTEM,
    }
}

/// Every configured tool, for a description: nothing runs, and nothing ends the sessions of its tool sets.
///
/// # Errors
///
/// If a tool cannot be built, or two tools have one name.
pub fn registry(config: &Config) -> Result<Registry, AppError> {
    let events: Arc<dyn WebEvents> = Arc::new(Discard);
    let registry = tools(config, &events)?.0;
    registry.register_all(scripts::described(config)?)?;
    registry.register_all(memory::tools(config, memory::of_command(config).as_ref()))?;
    // These are not called.
    let guides = guides::load(config, None)?;
    let policy = policy(config, Registry::new())?;
    let (tasks, gates) = (schedule::tasks(&OpenStore::in_memory().store), Arc::new(Gates::new(policy.clone())));
    registry.register_all(schedule::tools(config, &tasks, &gates))?;
    let search = guides::searching(&policy, None, None);
    registry.register_all(guides::tools(config, guides.as_ref(), &policy, &search))?;
    let (store, bus): (_, Arc<dyn Bus>) = (OpenStore::in_memory().store, Arc::new(Embedded::new()));
    registry.register_all(config.remote_tools(&daemons(config, &bus))?)?;
    let subagents = subagents::new(config, &store, &bus, || Arc::new(Discard));
    registry.register_all(subagents::tools(config, subagents.as_ref()))?;
    let pipelines = pipelines::new(config, &policy, Arc::new(pipelines::Uncallable));
    registry.register_all(pipelines::tool(config, pipelines.as_ref()).into_iter().collect())?;
    let (store, events) = (OpenStore::in_memory().store, Arc::new(Discard));
    let agents = agents::service(config, &store, Arc::new(Embedded::new()), events, &Redactor::default())?;
    registry.register_all(agents::tools(config, agents::of_rules(config, agents.as_ref())?.as_ref()))?;
    Ok(registry)
}

/// The configured tools but those of MCP servers, scripts and commands; and the tool sets that are built for each session.
///
/// # Errors
///
/// If the settings of a tool are invalid, or two tools have the same name.
pub(super) fn tools(
    config: &Config,
    events: &Arc<dyn WebEvents>,
) -> Result<(Registry, Vec<Arc<SessionSet>>), AppError> {
    let (tools, sets) = in_sessions(config, config.tools(events)?, |_| None);
    let registry = Registry::new();
    registry.register_all(tools)?;
    Ok((registry, sets))
}

/// What makes calls at other daemons of the bus.
pub(super) fn daemons(config: &Config, bus: &Arc<dyn Bus>) -> RemoteDaemons {
    let max_answer = usize::try_from(config.results.max_size.bytes()).unwrap_or(usize::MAX);
    RemoteDaemons::new(Arc::clone(bus), config.bus.name.clone(), config.bus.url.login(), max_answer)
}

/// The policy of the configuration for the tools of `registry`.
///
/// # Errors
///
/// If rules contradict each other.
pub fn policy(config: &Config, registry: Registry) -> Result<PolicyHandle, AppError> {
    let invoke = &config.invoke;
    let capacity = Capacity { max_in_flight: invoke.max_in_flight, max_waiting: invoke.max_waiting };
    Ok(PolicyHandle::new(registry, config.identity(), config.policy()?, capacity))
}

/// A redactor that knows the secrets of the configuration.
#[must_use]
pub fn redactor(config: &Config) -> Redactor {
    let redactor = Redactor::default();
    hide(&[config], &redactor);
    redactor
}

/// Replaces the secrets that `redactor` knows by those of `configs`.
pub(crate) fn hide(configs: &[&Config], redactor: &Redactor) {
    let of_exporter = secrets::of_exporter(|name| std::env::var(name).ok());
    let given = configs.iter().flat_map(|config| config.secrets()).map(|given| given.secret);
    redactor.configure(given.chain(of_exporter));
}

/// The MCP servers of a process, which may have none.
pub(super) fn shown(servers: Option<&AppServers>) -> Arc<dyn McpAdmin> {
    servers.map_or_else(|| Arc::new(NoServers) as _, |servers| Arc::new(servers.clone()) as _)
}
