//! Other agents: their tools, and what hears them.

use std::sync::Arc;

use toolbus_agents::a2a::{
    AgentDirectory, AgentTasks, AgentsError, AllowedAgents, AnnouncementHandler, Announcer, MAX_TASK_BODY,
    SkillCancelHandler, SkillHandler, TaskAnswerHandler, TaskHandoverHandler,
};
use toolbus_agents::{A2aTools, AgentService};
use toolbus_core::bus::{Bus, Ownership, Subscription};
use toolbus_core::caller::AgentName;
use toolbus_core::events::AgentEvents;
use toolbus_core::pattern::Pattern;
use toolbus_core::policy::PolicyHandle;
use toolbus_core::redact::Redactor;
use toolbus_core::store::Store;
use toolbus_core::tool::Tool;
use toolbus_core::{Clock, ControlHandler as _, ControlService, Invoker, MAX_CONTROL_BODY};
use toolbus_outbound::egress::Egress;
use toolbus_protocol::{Random, new_message_id, topic};

use super::App;
use crate::config::agents::is_default;
use crate::config::{AgentConfig, Config};

/// Prefetch of queues of results, which may be large.
const ANSWER_PREFETCH: u16 = 16;

/// What the process has of other agents, if the configuration has a section for them.
///
/// # Errors
///
/// If the agents of the configuration cannot be used.
pub(super) fn service(
    config: &Config,
    store: &Arc<dyn Store>,
    bus: Arc<dyn Bus>,
    events: Arc<dyn AgentEvents>,
    redactor: &Redactor,
) -> Result<Option<AgentService>, AgentsError> {
    let Some(section) = config.a2a.clone() else { return Ok(None) };
    let directory = AgentDirectory::new(&section, &config.bus.name, Clock::SYSTEM)?;
    let (tasks, prefix) = (AgentTasks::new(Arc::clone(store)), config.queue_prefix());
    let names = (config.bus.name.clone(), &*prefix);
    let tools = (Clock::SYSTEM, Random::SYSTEM, redactor.clone());
    Ok(Some(AgentService::new(section, directory, tasks, bus, names, events, tools)))
}

/// What makes the tools, by the rules of a configuration.
///
/// # Errors
///
/// If TLS cannot be set up.
pub(super) fn of_rules(config: &Config, service: Option<&AgentService>) -> Result<Option<A2aTools>, AgentsError> {
    let Some(service) = service else { return Ok(None) };
    let egress = Egress::new(config.egress_rules(), concat!("toolbus/", env!("CARGO_PKG_VERSION")));
    let egress = egress.map_err(|error| AgentsError::Client(error.to_string()))?;
    Ok(Some(A2aTools::new(service.clone(), allowed(config), egress)))
}

/// The tools, with their limits.
pub(super) fn tools(config: &Config, agents: Option<&A2aTools>) -> Vec<Tool> {
    let mut tools = agents.map(A2aTools::tools).unwrap_or_default();
    tools.iter_mut().for_each(|tool| config.limit(tool));
    tools
}

/// What announces the daemon as an agent, if the configuration says so.
///
/// # Errors
///
/// If the daemon's name cannot be an agent's.
pub(super) fn announcer(
    config: &Config,
    policy: &PolicyHandle,
    bus: Arc<dyn Bus>,
) -> Result<Option<Announcer>, AgentsError> {
    let Some(section) = &config.a2a else { return Ok(None) };
    let name = &config.bus.name;
    let problem = |what: String| AgentsError::Agent(name.clone(), what);
    let (names, tools) = ((&**name, crate::VERSION), (Clock::SYSTEM, Random::SYSTEM));
    let announcer = Announcer::new(section, policy.clone(), bus, names, tools);
    let announcer = announcer.map_err(|error| problem(error.to_string()))?;
    if let (Some(_), Err(error)) = (&announcer, AgentName::parse(name)) {
        return Err(problem(format!("it cannot be announced: `bus.name` {error}")));
    }
    Ok(announcer)
}

/// Which agents each agent may give tasks to.
fn allowed(config: &Config) -> AllowedAgents {
    let patterns = |section: &AgentConfig| -> Vec<Pattern> {
        section.allowed_agents.iter().map(|pattern| Pattern::clone(pattern)).collect()
    };
    let sections = config.agents.iter().map(|(agent, section)| (agent.clone(), patterns(section)));
    let default = config.agents.iter().find(|(agent, _)| is_default(agent)).map(|(_, section)| patterns(section));
    AllowedAgents::new(sections.collect(), default)
}

/// The queues of what is heard of agents: announcements, and results that other replicas hand over to this one, in queues
/// of its own, so that a flood delays nothing else.
pub(super) fn queues(config: &Config, service: Option<&AgentService>, prefetch: u16) -> Vec<Subscription> {
    let Some(service) = service else { return Vec::new() };
    let (prefix, [shared, own]) = (config.queue_prefix(), service.topics());
    let max_body = TaskAnswerHandler(service.clone()).max_body();
    let max_handover = TaskHandoverHandler(service.clone()).max_body();
    let replica = |name: &str| format!("{prefix}.{name}.{}", new_message_id());
    let queue = |queue, topics: &[&str], prefetch, max_body, ownership| {
        let topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
        Subscription { queue, topics, prefetch, max_body, ownership }
    };
    let mut queues = vec![
        queue(replica("agents"), &[topic::DISCOVERY_ANNOUNCE], prefetch, MAX_CONTROL_BODY, Ownership::Replica),
        queue(replica("results"), &[own], ANSWER_PREFETCH, max_handover, Ownership::Replica),
        queue(
            format!("{prefix}.results"),
            &[shared, topic::AGENT_TASK_STATUS],
            ANSWER_PREFETCH,
            max_body,
            Ownership::Shared,
        ),
    ];
    if config.a2a.as_ref().is_some_and(|section| !section.announce.is_empty()) {
        let topics = [topic::agent_task(&config.bus.name), topic::agent_task_cancel(&config.bus.name)];
        let topics = topics.each_ref().map(String::as_str);
        // Tasks are calls: which of them wait, and whose are refused, is decided by the places that callers have.
        let prefetch = config.invoke.prefetch();
        queues.push(queue(format!("{prefix}.tasks"), &topics, prefetch, MAX_TASK_BODY, Ownership::Shared));
    }
    queues
}

impl App {
    /// Has `control` hear what agents say, and starts to look for tasks that are too late.
    pub(super) fn with_agents(&mut self, control: ControlService) -> ControlService {
        let Some(service) = self.agents.clone() else { return control };
        self.background.spawn(service.clone().run());
        let results = Arc::new(TaskAnswerHandler(service.clone()));
        let handovers = Arc::new(TaskHandoverHandler(service.clone()));
        let [shared, own] = service.topics().map(str::to_owned);
        let control = match &self.announcer {
            Some(announcer) => {
                self.background.spawn(announcer.clone().run());
                let invoker: Arc<dyn Invoker> = Arc::new(self.dispatcher.clone());
                let skills = Arc::new(SkillHandler::new(announcer.clone(), invoker));
                let name = &self.config.bus.name;
                control
                    .with(topic::agent_task(name), skills)
                    .with(topic::agent_task_cancel(name), Arc::new(SkillCancelHandler))
            }
            None => control,
        };
        control
            .with(topic::DISCOVERY_ANNOUNCE, Arc::new(AnnouncementHandler(service)))
            .with(topic::AGENT_TASK_STATUS, Arc::clone(&results) as _)
            .with(shared, results)
            .with(own, handovers)
    }
}
