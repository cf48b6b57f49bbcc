//! The daemon as an agent: it announces tools as its skills, and runs them as tasks.
//!
//! A task is a call of its caller: what the caller may not use is no skill, and neither is what is not announced.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use toolbus_core::bus::{Bus, Outgoing, Target};
use toolbus_core::failure::{Cause, Effect};
use toolbus_core::pattern::{Pattern, PatternError};
use toolbus_core::policy::PolicyHandle;
use toolbus_core::text::shown;
use toolbus_core::tool::{ToolDescriptor, ToolOutput};
use toolbus_core::{
    Clock, ControlError, ControlHandler, ControlReply, ControlRequest, InnerCall, InnerOrigin, Invoker,
};
use toolbus_protocol::{
    AgentCard, AgentMessage, AgentMessageBody as _, AgentSkill, AgentTaskCancelRequest, AgentTaskError,
    AgentTaskRequest, AgentTaskResult, AgentTaskState, AgentTaskStatusUpdate, Envelope, Random, derived_message_id,
    header, message_type, parse_object, topic,
};

use super::card::bounded;
use super::config::A2aConfig;
use super::tools::SOURCE;

/// Time between two announcements, as peers have it.
const INTERVAL: Duration = Duration::from_secs(2 * 60);
/// Longest task, in bytes: more than any that `invoke_agent` gives, however its message is escaped.
pub const MAX_TASK_BODY: usize = 1024 * 1024;
/// Longest wait for a confirm.
const PUBLISH_TIME: Duration = Duration::from_secs(4);

/// Announces the daemon as an agent. Cheap to clone.
#[derive(Clone)]
pub struct Announcer {
    patterns: Arc<[Pattern]>,
    policy: PolicyHandle,
    bus: Arc<dyn Bus>,
    name: Arc<str>,
    version: Arc<str>,
    clock: Clock,
    random: Random,
}

impl Announcer {
    /// An announcer of the tools that the configuration lists; `None` where it lists none.
    ///
    /// # Errors
    ///
    /// If a pattern is none.
    pub fn new(
        config: &A2aConfig,
        policy: PolicyHandle,
        bus: Arc<dyn Bus>,
        (name, version): (&str, &str),
        (clock, random): (Clock, Random),
    ) -> Result<Option<Self>, PatternError> {
        let patterns: Arc<[Pattern]> =
            config.announce.iter().map(|pattern| Pattern::parse(pattern)).collect::<Result<_, _>>()?;
        let (name, version) = (name.into(), version.into());
        Ok((!patterns.is_empty()).then_some(Self { patterns, policy, bus, name, version, clock, random }))
    }

    /// Announces the daemon now, and every two minutes.
    pub async fn run(self) {
        loop {
            self.announce(self.card()).await;
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Announces that the daemon leaves.
    pub async fn leave(&self) {
        self.announce(AgentCard { is_deregistering: true, skills: Vec::new(), ..self.card() }).await;
    }

    /// Whether a tool is announced, and may be the skill of a task.
    fn is_skill(&self, tool: &ToolDescriptor) -> bool {
        *tool.source != *SOURCE && self.patterns.iter().any(|pattern| pattern.matches(&tool.name))
    }

    pub(crate) fn card(&self) -> AgentCard {
        let tools = self.policy.current().tools();
        let skills = tools.iter().filter(|tool| self.is_skill(tool)).map(|tool| AgentSkill {
            id: tool.name.to_string(),
            name: tool.title.clone().unwrap_or_else(|| tool.name.to_string()),
            description: Some(tool.description.clone()),
            ..AgentSkill::default()
        });
        bounded(AgentCard {
            agent_name: self.name.to_string(),
            description: Some(
                "Tools of a Toolbus daemon: a message is the arguments of a tool, as a JSON object.".to_owned(),
            ),
            version: Some(self.version.to_string()),
            skills: skills.collect(),
            ..AgentCard::default()
        })
    }

    async fn announce(&self, card: AgentCard) {
        let envelope = self.envelope(message_type::AGENT_CARD).with_header(header::CONTENT_TRUST, header::TRUST_SYSTEM);
        self.publish(topic::DISCOVERY_ANNOUNCE, envelope, serde_json::to_vec(&card).unwrap_or_default()).await;
    }

    /// Reports that the work on a task begins.
    async fn report_working(&self, task: &AgentTaskRequest, correlation_id: &str) {
        let update = AgentTaskStatusUpdate {
            task_id: task.task_id.clone(),
            context_id: task.context_id.clone(),
            state: AgentTaskState::Working,
            message: None,
        };
        let envelope = self.envelope(message_type::AGENT_TASK_STATUS_UPDATE);
        let envelope = Envelope { correlation_id: correlation_id.to_owned(), ..envelope };
        self.publish(topic::AGENT_TASK_STATUS, envelope, serde_json::to_vec(&update).unwrap_or_default()).await;
    }

    fn envelope(&self, kind: &'static str) -> Envelope {
        Envelope::outgoing(kind, &self.name, self.random.id(), self.clock.wall())
    }

    /// Publishes a message that is dropped if no queue is bound to its topic.
    async fn publish(&self, topic: &str, envelope: Envelope, body: Vec<u8>) {
        let message = Outgoing {
            target: Target::Topic(topic.to_owned()),
            mandatory: false,
            proven: false,
            properties: envelope.into_properties().into(),
            body: body.into(),
        };
        match tokio::time::timeout(PUBLISH_TIME, self.bus.publish(&message)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%error, topic, "other agents were not told"),
            Err(_) => tracing::debug!(topic, "other agents were not told: the broker does not confirm it"),
        }
    }
}

/// Runs tools as tasks of other agents.
pub struct SkillHandler {
    announcer: Announcer,
    invoker: Arc<dyn Invoker>,
}

/// Replies to requests to give up a task.
pub struct SkillCancelHandler;

impl SkillHandler {
    /// Runs them by `invoker`, with all steps of a call.
    #[must_use]
    pub fn new(announcer: Announcer, invoker: Arc<dyn Invoker>) -> Self {
        Self { announcer, invoker }
    }

    async fn run(&self, task: &AgentTaskRequest, request: &ControlRequest) -> Result<ToolOutput, AgentTaskError> {
        let refused = |code: &str, message: String| AgentTaskError {
            task_id: task.task_id.clone(),
            context_id: task.context_id.clone(),
            code: code.to_owned(),
            message,
            is_retryable: false,
        };
        let effective = self.announcer.policy.effective(&request.caller);
        let no_skill = || {
            let text = format!("There is no skill '{}'.", shown(&task.skill));
            refused(AgentTaskError::SKILL_NOT_SUPPORTED, text)
        };
        let tool = effective.get(&task.skill).filter(|allowed| self.announcer.is_skill(&allowed.tool.descriptor));
        let tool = tool.ok_or_else(no_skill)?.tool;
        let arguments = arguments(&task.message, &tool.descriptor).ok_or_else(|| {
            refused(AgentTaskError::INVALID_REQUEST, "The message is no JSON object with the arguments.".to_owned())
        })?;
        self.announcer.report_working(task, &request.envelope.correlation_id).await;
        // A task that is delivered again is the same one, whatever its id looks like.
        let id: Arc<str> = match header::is_idempotency_key(&task.task_id) {
            true => task.task_id.as_str().into(),
            false => derived_message_id("", &task.task_id, "").into(),
        };
        let call = InnerCall {
            origin: InnerOrigin::McpClient,
            caller: Arc::clone(&request.caller),
            call_id: Arc::clone(&id),
            server: None,
            tool: tool.descriptor.name.to_string(),
            arguments: Some(Value::Object(arguments).to_string()),
            deadline: None,
            cancelled: CancellationToken::new(),
            trace: request.envelope.trace.clone(),
            around: None,
            progress: None,
            idempotency_key: Some(id),
        };
        self.invoker.invoke(call).await.map_err(|failure| {
            let is_retryable = failure.verdict(Effect::Undeclared, false).is_retryable;
            let code = match failure.cause {
                Cause::UnknownTool => AgentTaskError::SKILL_NOT_SUPPORTED,
                Cause::InvalidArguments => AgentTaskError::INVALID_REQUEST,
                _ => AgentTaskError::EXECUTION_FAILED,
            };
            AgentTaskError { is_retryable, ..refused(code, failure.message) }
        })
    }
}

/// Builds the reply to a request that cannot be read: the reply is about the task that the properties of the request
/// name.
fn not_usable(request: &ControlRequest, code: &str, reason: &str) -> ControlReply {
    let error = AgentTaskError {
        task_id: request.envelope.correlation_id.clone(),
        context_id: None,
        code: code.to_owned(),
        message: format!("The request is not usable: {reason}."),
        is_retryable: false,
    };
    ControlReply::new(message_type::AGENT_TASK_ERROR, &error)
}

/// The arguments that a message gives for a tool: its data or text as a JSON object, or its text as the only argument that
/// the tool must have.
fn arguments(message: &AgentMessage, tool: &ToolDescriptor) -> Option<Map<String, Value>> {
    let data = message.parts.iter().find_map(|part| part.data.as_deref());
    let text = message.parts.iter().find_map(|part| part.text.as_deref());
    if let Ok(arguments) = parse_object(data.or(text)?.as_bytes()) {
        return Some(arguments);
    }
    let schema = tool.parameters.as_ref()?;
    let [only] = schema.get("required")?.as_array()?.as_slice() else { return None };
    let kind = schema.get("properties")?.get(only.as_str()?)?.get("type")?;
    (kind == "string").then(|| [(only.as_str().unwrap_or_default().to_owned(), text.into())].into_iter().collect())
}

impl ControlHandler for SkillHandler {
    fn message_type(&self) -> Option<&'static str> {
        Some(message_type::AGENT_TASK_REQUEST)
    }

    fn runs_calls(&self) -> bool {
        true
    }

    fn max_body(&self) -> usize {
        MAX_TASK_BODY
    }

    fn refusal(&self, request: &ControlRequest, reason: &str) -> Option<ControlReply> {
        Some(not_usable(request, AgentTaskError::INVALID_REQUEST, reason))
    }

    fn handle<'a>(&'a self, asked: &'a ControlRequest) -> BoxFuture<'a, Result<Option<ControlReply>, ControlError>> {
        async move {
            let task = AgentTaskRequest::parse(&asked.body)?;
            Ok(Some(match self.run(&task, asked).await {
                Ok(output) => {
                    let state = if output.is_error { AgentTaskState::Failed } else { AgentTaskState::Completed };
                    let message = Some(AgentMessage::text("agent", output.content.unwrap_or_default()));
                    let AgentTaskRequest { task_id, context_id, .. } = task;
                    let result = AgentTaskResult { task_id, context_id, state, artifacts: Vec::new(), message };
                    ControlReply::new(message_type::AGENT_TASK_RESULT, &result)
                }
                Err(error) => ControlReply::new(message_type::AGENT_TASK_ERROR, &error),
            }))
        }
        .boxed()
    }
}

impl ControlHandler for SkillCancelHandler {
    fn message_type(&self) -> Option<&'static str> {
        Some(message_type::AGENT_TASK_CANCEL_REQUEST)
    }

    fn refusal(&self, request: &ControlRequest, reason: &str) -> Option<ControlReply> {
        // Any other code ends the task.
        Some(not_usable(request, AgentTaskError::TASK_NOT_CANCELABLE, reason))
    }

    fn handle<'a>(&'a self, asked: &'a ControlRequest) -> BoxFuture<'a, Result<Option<ControlReply>, ControlError>> {
        let reply = AgentTaskCancelRequest::parse(&asked.body).map(|task| {
            let error = AgentTaskError {
                task_id: task.task_id,
                context_id: task.context_id,
                code: AgentTaskError::TASK_NOT_CANCELABLE.to_owned(),
                message: "A tool that runs is not cancelled by a task.".to_owned(),
                is_retryable: false,
            };
            Some(ControlReply::new(message_type::AGENT_TASK_ERROR, &error))
        });
        std::future::ready(reply.map_err(ControlError::from)).boxed()
    }
}

#[cfg(test)]
mod tests;
