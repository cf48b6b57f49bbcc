//! Tools: what they are, and how one is run.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;
use toolbus_protocol::{ContentBlock, ToolInvokeResponse, TraceContext};

use crate::Clock;
use crate::caller::Caller;
pub use crate::failure::Effect;
use crate::failure::{Cause, ToolFailure};
use crate::progress::ProgressSink;
use crate::redact::{REDACTED, Redactor};
use crate::results::{ResultRoom, SplitRule};
use crate::turns::{SMALL, Turns, is_small};

/// Description of a tool.
#[derive(Debug, Clone)]
pub struct ToolDescriptor {
    /// Name, unique in the registry, case-sensitive.
    pub name: Arc<str>,
    /// Name of the tool as people are shown it; absent: the name.
    pub title: Option<String>,
    /// Description of the tool, for a model.
    pub description: String,
    /// JSON Schema of its arguments; absent: any object.
    pub parameters: Option<Arc<Value>>,
    /// JSON Schema of the structured part of its results; absent: they need not have one.
    pub output_schema: Option<Arc<Value>>,
    /// Who registered it: `rest`, `time`, `mcp:NAME`, … Its metric label.
    pub source: Arc<str>,
    /// The kind of backend, as replies name it: `local`, `rest`, `mcp`, `script`.
    pub provider: &'static str,
    /// Effect of repeating a call.
    pub effect: Effect,
    /// Longest run of one call; absent: the daemon's.
    pub timeout: Option<Duration>,
    /// Calls that may run at a time; absent: the daemon's.
    pub max_in_flight: Option<usize>,
    /// Name of the tool at its source, where that is another one; absent for tools of a set, whose `toolset` has it.
    pub own_name: Option<Arc<str>>,
    /// The tool set that it belongs to; absent for a plain tool.
    pub toolset: Option<Membership>,
    /// Name of the MCP server, if the tool is one of a server's.
    pub server: Option<Arc<str>>,
    /// Handling of arguments that the schema does not allow.
    pub validation: Validation,
    /// Whether the tool only calls other tools: then its own calls take no slot, so that inner calls never wait for one
    /// that a call around them holds.
    pub delegates: bool,
    /// Whether another daemon, or a bridge, lists it. It is not listed for other daemons: two that list each other's
    /// tools would learn their own, under longer and longer names.
    pub is_learnt: bool,
    /// Hints for providers of models beside the definition, where the operator gives them.
    pub model_hints: Option<Arc<ModelHints>>,
    /// Reason why its definition is suspect, where that was looked at; empty: nothing was found.
    pub suspicions: Arc<[Suspicion]>,
}

/// Hints for providers of models, beside a tool's definition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelHints {
    /// Whether a model finds it by a search of its provider, and does not have it in each prompt.
    pub defer_loading: bool,
    /// Callers of the tool: the model itself (`direct`), or programs that the model writes, by the provider's names of
    /// these.
    pub allowed_callers: Vec<String>,
    /// Arguments of calls, as examples.
    pub input_examples: Vec<Map<String, Value>>,
}

/// Handling of arguments that a tool's schema does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Validation {
    /// The call is refused.
    #[default]
    Enforce,
    /// The call is run, and the log has the violations.
    Warn,
    /// Arguments are not checked.
    Off,
}

/// The tool set of a tool, and its name there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// Name of the set.
    pub set: Arc<str>,
    /// Name of the tool within the set: what its executor knows it by.
    pub name: Arc<str>,
    /// Whether each session has an executor of its own, so that a call needs a session.
    pub needs_session: bool,
}

impl ToolDescriptor {
    /// A tool with no schema, no limits and no declared effect.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, source: impl Into<Arc<str>>, provider: &'static str) -> Self {
        Self {
            name: name.into(),
            title: None,
            description: String::new(),
            parameters: None,
            output_schema: None,
            source: source.into(),
            provider,
            effect: Effect::default(),
            timeout: None,
            max_in_flight: None,
            own_name: None,
            toolset: None,
            server: None,
            validation: Validation::default(),
            delegates: false,
            is_learnt: false,
            model_hints: None,
            suspicions: Arc::default(),
        }
    }

    /// A tool of this daemon, with what a model reads of it.
    #[must_use]
    pub fn local(
        name: impl Into<Arc<str>>,
        source: &'static str,
        description: impl Into<String>,
        effect: Effect,
        parameters: Value,
    ) -> Self {
        let (description, parameters) = (description.into(), Some(Arc::new(parameters)));
        Self { description, parameters, effect, ..Self::new(name, source, "local") }
    }

    /// The name that its source knows it by: without the prefix of a tool set or server, and not renamed.
    #[must_use]
    pub fn bare_name(&self) -> &Arc<str> {
        let in_set = self.toolset.as_ref().map(|member| &member.name);
        in_set.or(self.own_name.as_ref()).unwrap_or(&self.name)
    }
}

/// One call, as an executor gets it: everything has been checked.
#[derive(Debug, Clone)]
pub struct ToolCall {
    /// Name of the tool, without the prefix of a tool set.
    pub tool: Arc<str>,
    /// The caller, with its session.
    pub caller: Arc<Caller>,
    /// The caller's id of the call.
    pub call_id: Arc<str>,
    /// The arguments, valid against the tool's schema.
    pub arguments: Arc<Map<String, Value>>,
    /// When to give up: a little before the call's own deadline, so that the executor's error is the one that is
    /// reported.
    pub deadline: Instant,
    /// The time that the call has in all, as its caller or the tool's settings gave it, for texts.
    pub limit: Duration,
    /// Cancelled when no caller waits any more. An executor that ignores it is dropped.
    pub cancelled: CancellationToken,
    /// The trace to continue in requests to others.
    pub trace: Option<TraceContext>,
    /// Number of the call in telemetry, by which inner calls name it.
    pub number: Option<u64>,
    /// Room for a result above the executor's own limit; absent where such a result would not be split.
    pub room: Option<ResultRoom>,
    /// Gives turns for heavy work.
    pub turns: Turns,
    /// Where to report progress; absent when the caller does not want to know.
    pub progress: Option<ProgressSink>,
    /// Key by which a backend may recognise a repetition: the same whenever this request is run again, and no other
    /// request's. `None` for a tool that is read-only, and for a request that cannot be distinguished from others.
    pub idempotency_key: Option<Arc<str>>,
}

impl ToolCall {
    /// A call that has so much time from now, and nothing that is optional: for code that runs an executor itself.
    #[must_use]
    pub fn new(tool: impl Into<Arc<str>>, caller: Caller, arguments: Map<String, Value>, limit: Duration) -> Self {
        Self {
            tool: tool.into(),
            caller: Arc::new(caller),
            call_id: "call-1".into(),
            arguments: Arc::new(arguments),
            deadline: Clock::SYSTEM.now() + limit,
            limit,
            cancelled: CancellationToken::new(),
            trace: None,
            number: None,
            room: None,
            turns: Turns::default(),
            progress: None,
            idempotency_key: None,
        }
    }

    /// Time left until the executor has to end.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Clock::SYSTEM.now())
    }

    /// Does heavy work for this call, whose tool has begun: in a turn on a thread of its own, or at once if it is on at
    /// most [`SMALL`] bytes of data that came from outside.
    ///
    /// # Errors
    ///
    /// [`Cause::Unavailable`] if it is not done before the call's deadline.
    pub async fn in_turn<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ToolFailure> {
        self.turns.finish(self.caller.sharer(""), bytes, self.deadline, work).await
    }

    /// The arguments, as the type that the tool's schema describes.
    ///
    /// # Errors
    ///
    /// [`Cause::InvalidArguments`], for a call that was not checked against the schema.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, ToolFailure> {
        T::deserialize(&*self.arguments)
            .map_err(|error| ToolFailure::invalid(format!("The arguments cannot be read: {error}.")))
    }

    /// The failure of a call whose tool did not end in time. `own_limit` is what the tool allows each call, if
    /// anything.
    #[must_use]
    pub fn timed_out(&self, own_limit: Option<Duration>) -> ToolFailure {
        let limit = own_limit.unwrap_or(self.limit).min(self.limit);
        let text = format!("Tool '{}' did not answer within {}.", self.tool, time_text(limit));
        ToolFailure::new(Cause::DeadlineExceeded, text)
    }
}

/// A time as texts for callers and models have it: `1500 ms`, `5 s`, `20 minutes` or `24 hours`.
#[must_use]
pub fn time_text(time: Duration) -> String {
    let seconds = time.as_secs();
    match time.as_millis() {
        milliseconds if milliseconds % 1000 != 0 => format!("{milliseconds} ms"),
        _ if seconds >= 7200 && seconds.is_multiple_of(3600) => format!("{} hours", seconds / 3600),
        _ if seconds >= 120 && seconds.is_multiple_of(60) => format!("{} minutes", seconds / 60),
        _ => format!("{seconds} s"),
    }
}

/// A time that need not be exact, rounded up to one that [`time_text`] writes shortly.
#[must_use]
pub fn rounded_text(time: Duration) -> String {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let unit = match seconds {
        0..120 => 1,
        120..7200 => 60,
        _ => 3600,
    };
    time_text(Duration::from_secs(seconds.div_ceil(unit) * unit))
}

/// Output of a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolOutput {
    /// The text of the result.
    pub content: Option<String>,
    /// All of the result, when there is more than text.
    pub blocks: Vec<ContentBlock>,
    /// Whether the tool reports that it tried and did not succeed.
    pub is_error: bool,
    /// The structured part of the result, where the tool gave one. Callers of the bus find it in `content` or `blocks`.
    pub structured: Option<Box<Value>>,
    /// Output of a program, where the tool ran one; not on the wire of `tool.invoke`.
    pub program: Option<Box<Program>>,
    /// Rule for splitting a result that is too long, where that is not as the results of other tools are.
    pub split: Option<Box<SplitRule>>,
}

impl ToolOutput {
    /// Removes secrets from a result. Data that holds one is replaced as a whole, so that it can be decoded.
    pub(crate) fn redact(&mut self, redactor: &Redactor) {
        let Self { content, blocks, structured, is_error: _, program, split } = self;
        let clean = |text: &mut Option<String>| {
            if let Some(text) = text {
                redactor.clean(text);
            }
        };
        clean(content);
        structured.iter_mut().for_each(|value| redactor.clean_value(value));
        for ContentBlock { kind, text, data, mime_type, uri } in blocks {
            redactor.clean(kind);
            [text, mime_type, uri].into_iter().for_each(clean);
            if let Some(data) = data
                && redactor.bytes(data.as_bytes()).is_some()
            {
                *data = STANDARD.encode(REDACTED);
            }
        }
        if let Some(program) = program {
            let Program { stdout, stderr, exit_code: _, elapsed: _ } = &mut **program;
            clean(stdout);
            clean(stderr);
        }
        if let Some(rule) = split {
            let SplitRule { stem, subject, threshold: _, max: _, ttl: _, category: _ } = &mut **rule;
            redactor.clean(stem);
            redactor.clean(subject);
        }
    }

    /// A result of text alone.
    #[must_use]
    pub fn text(content: impl Into<String>) -> Self {
        Self { content: Some(content.into()), ..Self::default() }
    }

    /// The tool's own report that it did not succeed.
    #[must_use]
    pub fn error(content: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(content) }
    }

    /// Whether the output is [heavy](crate::turns) to work on.
    #[must_use]
    pub fn is_large(&self) -> bool {
        let program = self.program.as_ref().map_or(0, |program| {
            [&program.stdout, &program.stderr].into_iter().flatten().map(String::len).sum::<usize>()
        });
        self.size() + program > SMALL || self.structured.as_ref().is_some_and(|value| !is_small(value))
    }

    /// Bytes of text and data in the result, without what a program wrote.
    #[must_use]
    pub fn size(&self) -> usize {
        let block = |b: &ContentBlock| {
            [&b.text, &b.data, &b.mime_type, &b.uri].into_iter().flatten().map(String::len).sum::<usize>()
        };
        self.content.as_ref().map_or(0, String::len) + self.blocks.iter().map(block).sum::<usize>()
    }
}

/// A result as a caller on the bus gets it.
impl From<ToolInvokeResponse> for ToolOutput {
    fn from(response: ToolInvokeResponse) -> Self {
        let blocks = response.content_blocks.unwrap_or_default();
        let structured = blocks.iter().find(|block| block.is_structured());
        let structured = structured.and_then(|block| serde_json::from_str::<Value>(block.text.as_deref()?).ok());
        Self {
            content: response.content,
            blocks,
            is_error: response.is_error,
            structured: structured.map(Box::new),
            program: None,
            split: None,
        }
    }
}

/// Runs the calls of one tool.
///
/// Runs inside a bulkhead: a panic, a passed deadline and a cancellation are handled outside, the latter two by
/// dropping the future. What blocks its thread belongs in `spawn_blocking`: other calls run in the same one.
pub trait Executor: Send + Sync + 'static {
    /// Runs one call to its end.
    ///
    /// # Errors
    ///
    /// If the call could not be run; a tool that ran and did not succeed returns [`ToolOutput::error`].
    fn execute(&self, call: ToolCall) -> impl Future<Output = Result<ToolOutput, ToolFailure>> + Send;
}

/// The same result for every call.
impl Executor for ToolOutput {
    async fn execute(&self, _: ToolCall) -> Result<Self, ToolFailure> {
        Ok(self.clone())
    }
}

/// An executor of any type: how the registry keeps them.
pub trait AnyExecutor: Send + Sync + 'static {
    /// See [`Executor::execute`].
    fn execute_boxed(self: Arc<Self>, call: ToolCall) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>>;
}

impl<E: Executor> AnyExecutor for E {
    fn execute_boxed(self: Arc<Self>, call: ToolCall) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>> {
        Box::pin(async move { self.execute(call).await })
    }
}

/// A tool that can be called.
#[derive(Clone)]
pub struct Tool {
    /// Description of the tool.
    pub descriptor: Arc<ToolDescriptor>,
    /// Executor of the tool's calls.
    pub executor: Arc<dyn AnyExecutor>,
    pub(crate) schema: Option<Schema>,
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tool").field(&self.descriptor).finish()
    }
}

/// A tool's schema and its digest, by which equal ones are recognised.
#[derive(Debug, Clone)]
pub(crate) struct Schema {
    pub(crate) value: Arc<Value>,
    pub(crate) digest: [u8; 16],
}

impl Tool {
    /// Puts a tool together.
    pub fn new(descriptor: ToolDescriptor, executor: impl Executor) -> Self {
        let schema = descriptor.parameters.as_ref().map(Schema::new);
        Self { descriptor: Arc::new(descriptor), executor: Arc::new(executor), schema }
    }

    /// A number for its entry in lists.
    pub(crate) fn fingerprint(&self) -> u64 {
        let ToolDescriptor { name, description, source, effect, .. } = &*self.descriptor;
        let effect = match effect {
            Effect::ReadOnly => "read-only",
            Effect::Idempotent => "idempotent",
            Effect::Effectful => "effectful",
            Effect::Undeclared => "",
        };
        let schema = self.schema.as_ref().map(|schema| format!("{:x?}", schema.digest)).unwrap_or_default();
        let output = self.descriptor.output_schema.as_ref().map(|schema| schema.to_string()).unwrap_or_default();
        let title = self.descriptor.title.as_deref().unwrap_or_default();
        digest_of(&[name, title, description, source, effect, &schema, &output])
    }
}

impl Schema {
    /// Schemas may come from outside, so the digest resists collisions.
    pub(crate) fn new(value: &Arc<Value>) -> Self {
        let mut digest = [0_u8; 16];
        for (to, from) in digest.iter_mut().zip(Sha256::digest(value.to_string())) {
            *to = from;
        }
        Self { value: Arc::clone(value), digest }
    }
}

/// A number for some texts; collisions cannot be forged.
pub(crate) fn digest_of(texts: &[&str]) -> u64 {
    let mut digest = Sha256::new();
    for text in texts {
        digest.update((text.len() as u64).to_be_bytes());
        digest.update(text);
    }
    digest.finalize().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// From the names that a source has for its tools to those that they are published under, and back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Naming {
    /// Prefix of the tool set that the source backs; before a dot.
    pub set: Option<Arc<str>>,
    /// Prefix of the source's own; before an underscore.
    pub prefix: Option<Arc<str>>,
    /// Names that replace the source's own, by those; they get no `prefix`.
    pub renamed: BTreeMap<Arc<str>, Arc<str>>,
}

impl Naming {
    /// The name that a tool is published under.
    #[must_use]
    pub fn published(&self, own: &str) -> String {
        let set = self.set.iter().flat_map(|set| [&**set, "."]);
        let name: Vec<&str> = match (self.renamed.get(own), &self.prefix) {
            (Some(name), _) => vec![name],
            (None, Some(prefix)) => vec![prefix, "_", own],
            (None, None) => vec![own],
        };
        set.chain(name).collect()
    }

    /// The source's own name for the tool that would be published under this one; `None` if no tool of the source would
    /// be.
    #[must_use]
    pub fn own<'a>(&'a self, published: &'a str) -> Option<&'a str> {
        let name = match &self.set {
            Some(set) => published.strip_prefix(&**set)?.strip_prefix('.')?,
            None => published,
        };
        if let Some((own, _)) = self.renamed.iter().find(|(_, renamed)| ***renamed == *name) {
            return Some(own);
        }
        let own = match &self.prefix {
            Some(prefix) => name.strip_prefix(&**prefix)?.strip_prefix('_')?,
            None => name,
        };
        (!self.renamed.contains_key(own)).then_some(own)
    }
}

/// Output and end of a program, where a tool ran one. Callers of `script.invoke` receive it; for all others the content
/// suffices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Standard output of the program.
    pub stdout: Option<String>,
    /// Standard error of the program.
    pub stderr: Option<String>,
    /// Exit code of the program.
    pub exit_code: i32,
    /// Time that the program ran.
    pub elapsed: Duration,
}

impl ToolOutput {
    /// Adds what the program wrote that the tool ran.
    #[must_use]
    pub fn of_program(mut self, program: Program) -> Self {
        self.program = Some(Box::new(program));
        self
    }
}

/// One thing about a tool's definition, or about a server's description of itself, that looks like an attempt to turn
/// the model against the user. A sign and no proof: people decide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspicion {
    /// Id of the rule that was met.
    pub rule: Arc<str>,
    /// Where: `description`, `parameters.properties.path.description`.
    pub place: String,
    /// Offending text, shortened, without invisible characters.
    pub excerpt: String,
}

/// In one line: `conceal in description: "do not tell the user"`.
impl fmt::Display for Suspicion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, place, excerpt } = self;
        write!(f, "{rule} in {place}: {excerpt:?}")
    }
}

#[cfg(test)]
mod tests;
