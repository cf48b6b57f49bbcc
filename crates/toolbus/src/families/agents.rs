//! Other agents: their tools, and the consumers of their messages.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use toolbus_agents::a2a::{
    self, AgentDirectory, AgentTasks, AgentsError, AllowedAgents, AnnouncementHandler, Announcer, MAX_TASK_BODY,
    SkillCancelHandler, SkillHandler, TaskHandoverHandler, TaskReportHandler,
};
use toolbus_agents::guides::GuideFor;
use toolbus_agents::{A2aTools, AgentService};
use toolbus_core::bus::{Ownership, Subscription};
use toolbus_core::caller::AgentName;
use toolbus_core::events::{AgentEvents, Discard};
use toolbus_core::tool::Tool;
use toolbus_core::{Clock, ControlHandler as _, Invoker, MAX_CONTROL_BODY};
use toolbus_outbound::egress::Egress;
use toolbus_protocol::{Random, new_message_id, topic};

use super::{
    CONTROL_PREFETCH, Contributions, FamilyContext, FamilyError, FamilyGuide, FamilyPlan, Queue, Takes, ToolFamily,
    Work,
};
use crate::config::agents::is_default;
use crate::config::{AgentConfig, Config};

/// Prefetch of queues of results, which may be large.
const REPLY_PREFETCH: u16 = 16;

/// Other agents.
pub(super) struct AgentFamily {
    /// Absent where the configuration has no section for them.
    service: Option<AgentService>,
    /// Announces this daemon as an agent; absent where it does not.
    announcer: Option<Announcer>,
    invoker: Arc<dyn Invoker>,
}

impl AgentFamily {
    /// # Errors
    ///
    /// If the agents of the configuration cannot be used, or the daemon's name cannot be an agent's.
    pub(super) fn new(context: &FamilyContext<'_>) -> Result<Self, AgentsError> {
        Ok(Self { service: service(context)?, announcer: announcer(context)?, invoker: context.invoker() })
    }
}

impl ToolFamily for AgentFamily {
    fn name(&self) -> &'static str {
        "agents"
    }

    fn tools(&self, plan: &mut FamilyPlan<'_>) -> Result<Vec<Tool>, FamilyError> {
        plan.agents = self.service.as_ref().map(|service| of_rules(plan.config, service)).transpose()?;
        Ok(plan.agents.as_ref().map(A2aTools::tools).unwrap_or_default())
    }

    fn guides(&self) -> Vec<FamilyGuide> {
        vec![(GuideFor::Source(a2a::tools::SOURCE), "agents", a2a::GUIDE)]
    }

    fn contribute(&self, to: &mut Contributions) {
        to.views.agents = self.service.clone();
    }

    fn queues(&self, config: &Config) -> Vec<Queue> {
        let queues = self.service.as_ref().map(|service| queues(config, service)).unwrap_or_default();
        queues.into_iter().map(|queue| (queue, Takes::Requests)).collect()
    }

    /// Consumes the announcements of agents, and looks for overdue tasks.
    fn work(&self, work: &mut Work<'_>) {
        let Some(service) = self.service.clone() else { return };
        work.background.spawn(service.clone().run());
        if let Some(announcer) = &self.announcer {
            work.background.spawn(announcer.clone().run());
            let skills = Arc::new(SkillHandler::new(announcer.clone(), Arc::clone(&self.invoker)));
            let name = &work.config.bus.name;
            work.handle(topic::agent_task(name), skills);
            work.handle(topic::agent_task_cancel(name), Arc::new(SkillCancelHandler));
        }
        let results = Arc::new(TaskReportHandler(service.clone()));
        let [shared, own] = service.topics().map(str::to_owned);
        work.handle(topic::AGENT_TASK_STATUS, Arc::clone(&results) as _);
        work.handle(shared, results);
        work.handle(own, Arc::new(TaskHandoverHandler(service.clone())));
        work.handle(topic::DISCOVERY_ANNOUNCE, Arc::new(AnnouncementHandler(service)));
    }

    fn leave(&self) -> BoxFuture<'_, ()> {
        async move {
            if let Some(announcer) = &self.announcer {
                announcer.leave().await;
            }
        }
        .boxed()
    }
}

/// The agents and their tasks, if the configuration has a section for them.
fn service(context: &FamilyContext<'_>) -> Result<Option<AgentService>, AgentsError> {
    let config = context.config;
    let Some(section) = config.a2a.clone() else { return Ok(None) };
    let events: Arc<dyn AgentEvents> = match context.exporters {
        Some(exporters) => Arc::new(exporters.agents()),
        None => Arc::new(Discard),
    };
    let directory = AgentDirectory::new(&section, &config.bus.name, Clock::SYSTEM)?;
    let (tasks, prefix) = (AgentTasks::new(Arc::clone(&context.store)), config.queue_prefix());
    let names = (config.bus.name.clone(), &*prefix);
    let tools = (Clock::SYSTEM, Random::SYSTEM, context.redactor.clone());
    Ok(Some(AgentService::new(section, directory, tasks, Arc::clone(&context.bus), names, events, tools)))
}

/// The maker of the tools, by the rules of a configuration.
///
/// # Errors
///
/// If TLS cannot be set up.
fn of_rules(config: &Config, service: &AgentService) -> Result<A2aTools, AgentsError> {
    let egress = Egress::new(config.egress_rules(), concat!("toolbus/", env!("CARGO_PKG_VERSION")));
    let egress = egress.map_err(|error| AgentsError::Client(error.to_string()))?;
    Ok(A2aTools::new(service.clone(), allowed(config), egress))
}

/// The announcer of the daemon as an agent, if configured.
///
/// # Errors
///
/// If the daemon's name cannot be an agent's.
fn announcer(context: &FamilyContext<'_>) -> Result<Option<Announcer>, AgentsError> {
    let config = context.config;
    let Some(section) = &config.a2a else { return Ok(None) };
    let name = &config.bus.name;
    let problem = |what: String| AgentsError::Agent(name.clone(), what);
    let (names, tools) = ((&**name, crate::VERSION), (Clock::SYSTEM, Random::SYSTEM));
    let announcer = Announcer::new(section, context.policy().clone(), Arc::clone(&context.bus), names, tools);
    let announcer = announcer.map_err(|error| problem(error.to_string()))?;
    if let (Some(_), Err(error)) = (&announcer, AgentName::parse(name)) {
        return Err(problem(format!("it cannot be announced: `bus.name` {error}")));
    }
    Ok(announcer)
}

/// Which agents each agent may give tasks to.
fn allowed(config: &Config) -> AllowedAgents {
    let patterns = |section: &AgentConfig| section.allowed_agents.clone();
    let sections = config.agents.iter().map(|(agent, section)| (agent.clone(), patterns(section)));
    let default = config.agents.iter().find(|(agent, _)| is_default(agent)).map(|(_, section)| patterns(section));
    AllowedAgents::new(sections.collect(), default)
}

/// The queues of messages of agents: announcements, and results that other replicas hand over to this one, in separate
/// queues, so that a flood delays nothing else.
fn queues(config: &Config, service: &AgentService) -> Vec<Subscription> {
    let (prefix, [shared, own]) = (config.queue_prefix(), service.topics());
    let max_body = TaskReportHandler(service.clone()).max_body();
    let max_handover = TaskHandoverHandler(service.clone()).max_body();
    let replica = |name: &str| format!("{prefix}.{name}.{}", new_message_id());
    let queue = |queue, topics: &[&str], prefetch, max_body, ownership| {
        let topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
        Subscription { queue, topics, prefetch, max_body, ownership, is_inbox: false }
    };
    // Running calls wait for results.
    let inbox = |queue: Subscription| Subscription { is_inbox: true, ..queue };
    let mut queues = vec![
        queue(replica("agents"), &[topic::DISCOVERY_ANNOUNCE], CONTROL_PREFETCH, MAX_CONTROL_BODY, Ownership::Replica),
        inbox(queue(replica("results"), &[own], REPLY_PREFETCH, max_handover, Ownership::Replica)),
        inbox(queue(
            format!("{prefix}.results"),
            &[shared, topic::AGENT_TASK_STATUS],
            REPLY_PREFETCH,
            max_body,
            Ownership::Shared,
        )),
    ];
    if config.a2a.as_ref().is_some_and(|section| !section.announce.is_empty()) {
        let topics = [topic::agent_task(&config.bus.name), topic::agent_task_cancel(&config.bus.name)];
        let topics = topics.each_ref().map(String::as_str);
        // Tasks are calls: the slots of their callers decide which of them wait and which are refused.
        let prefetch = config.invoke.prefetch();
        queues.push(queue(format!("{prefix}.tasks"), &topics, prefetch, MAX_TASK_BODY, Ownership::Shared));
    }
    queues
}
