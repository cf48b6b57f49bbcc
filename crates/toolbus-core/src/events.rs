//! Events that telemetry records: runs of scripts, pages and searches of the web, tasks of other agents, and MCP
//! traffic, named after OpenTelemetry's conventions for MCP: requests to servers whose tools the daemon offers, and
//! requests of clients that it serves.

use std::time::Duration;

use toolbus_protocol::TraceContext;

/// Receives what happens with MCP servers. Implementations neither block nor fail.
pub trait McpClientEvents: Send + Sync + 'static {
    /// A request, with a response or without.
    fn operation(&self, operation: &McpClientOperation<'_>);

    /// A connection that ended.
    fn session(&self, session: &McpClientSession<'_>);
}

/// One request to a server.
#[derive(Debug, Clone, Copy)]
pub struct McpClientOperation<'a> {
    /// The method, such as `tools/call`.
    pub method: &'a str,
    /// The tool of a `tools/call`.
    pub tool: Option<&'a str>,
    /// The server's name.
    pub server: &'a str,
    /// Version of the protocol; empty before one was agreed on.
    pub protocol_version: &'a str,
    /// `pipe` or `tcp`.
    pub transport: &'a str,
    /// Time from the request to its response.
    pub duration: Duration,
    /// Type of the error, if any: `tool_error`, `timeout`, `cancelled`, `connection_lost`, or a JSON-RPC error code.
    pub error_type: Option<&'a str>,
}

/// One connection to a server, from its handshake to its end.
#[derive(Debug, Clone, Copy)]
pub struct McpClientSession<'a> {
    /// The server's name.
    pub server: &'a str,
    /// Version of the protocol.
    pub protocol_version: &'a str,
    /// `pipe` or `tcp`.
    pub transport: &'a str,
    /// Time that the session lasted.
    pub duration: Duration,
    /// Reason why it ended, unless it was closed in order.
    pub error_type: Option<&'a str>,
}

/// Receives what happens with MCP clients. Implementations neither block nor fail.
pub trait McpServerEvents: Send + Sync + 'static {
    /// A request has come.
    fn started(&self, operation: &McpServerOperation<'_>) -> Box<dyn McpServerRequest>;

    /// A session has ended.
    fn session_ended(&self, protocol_version: &str, transport: &str, duration: Duration);
}

/// A request of a client.
#[derive(Debug, Clone, Copy)]
pub struct McpServerOperation<'a> {
    /// The method; `unknown` for one that does not exist.
    pub method: &'a str,
    /// Version of the protocol.
    pub protocol_version: &'a str,
    /// `pipe` or `tcp`.
    pub transport: &'a str,
    /// The client's session.
    pub session: Option<&'a str>,
    /// The request's id, as JSON.
    pub request: &'a str,
    /// The client's trace.
    pub parent: Option<&'a TraceContext>,
}

/// A request that is under way.
pub trait McpServerRequest: Send {
    /// The trace that the request goes on in; `None` if it goes on in the client's.
    fn trace(&self) -> Option<TraceContext>;

    /// The response was sent. `tool` is the called tool, if the client has it. `error_type` is `tool_error`, the bus's
    /// code of a failure, or a JSON-RPC error code.
    fn finished(self: Box<Self>, tool: Option<&str>, error_type: Option<&str>);
}

/// Receives what happens with scripts. Implementations neither block nor fail.
pub trait ScriptEvents: Send + Sync + 'static {
    /// A script had its turn, and has ended.
    fn run(&self, run: &ScriptRun);
}

/// One run of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptRun {
    /// Outcome of the run: one of [`ScriptRun::OUTCOMES`].
    pub outcome: &'static str,
    /// One of [`ScriptRun::STARTS`]; absent if the script did not run.
    pub start: Option<&'static str>,
    /// From the script's turn to its end, installation of packages included.
    pub duration: Duration,
    /// Wait for the turn.
    pub waited: Duration,
    /// CPU time, where it was measured.
    pub cpu: Option<Duration>,
    /// Peak memory in bytes, where it was measured.
    pub peak_memory: Option<u64>,
}

impl ScriptRun {
    /// Outcomes of runs: with exit code 0, with another, by a signal, over a limit, without packages, without a runner,
    /// or cancelled.
    pub const OUTCOMES: [&str; 12] = [
        "ok",
        "failed",
        "signal",
        "time",
        "cpu",
        "memory",
        "processes",
        "disk",
        "output",
        "packages",
        "unavailable",
        "cancelled",
    ];
    /// Whether the interpreter was started for the script, was ready, or was forked for it.
    pub const STARTS: [&str; 3] = ["cold", "warm", "forked"];
}

/// Receives what happens with the web tools. Implementations neither block nor fail.
pub trait WebEvents: Send + Sync + 'static {
    /// A page was requested, and received or not.
    fn fetched(&self, fetch: &WebFetch);

    /// A search engine was queried.
    fn searched(&self, search: &WebSearch);
}

/// One page that a caller requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebFetch {
    /// Outcome of the fetch: one of [`WebFetch::OUTCOMES`].
    pub outcome: &'static str,
    /// Site of the page: one of [`WebFetch::SITES`].
    pub site: &'static str,
    /// Reason why the egress rules refused it: one of [`WebFetch::REFUSALS`]; absent if they did not.
    pub refusal: Option<&'static str>,
    /// Bytes of the page without compression, if it was received from a site.
    pub size: Option<u64>,
}

impl WebFetch {
    /// Outcomes of pages: read, unchanged since it was kept, without text, with an error of the site, in a redirect
    /// that leads nowhere, with a host that is not known or gives no whole response, too late, too soon after another
    /// request, or refused by `robots.txt` or the egress rules.
    pub const OUTCOMES: [&str; 12] = [
        "ok",
        "unchanged",
        "no_text",
        "http_4xx",
        "http_5xx",
        "http_other",
        "redirects",
        "unreachable",
        "timeout",
        "spaced",
        "robots",
        "refused",
    ];
    /// A page of any site.
    pub const WEB: &str = "web";
    /// Site of pages that GitHub's API gave.
    pub const GITHUB: &str = "github";
    /// Sites of pages.
    pub const SITES: [&str; 2] = [Self::WEB, Self::GITHUB];
    /// Reasons of the egress rules for a refusal: the URL as it is, or the host for not being public, or for lists of
    /// the configuration or the agent.
    pub const REFUSALS: [&str; 8] =
        ["scheme", "no_host", "user_info", "port", "local_name", "address", "denied", "not_listed"];
}

/// One query to a search engine, its retries included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebSearch {
    /// The engine: one of [`WebSearch::PROVIDERS`].
    pub provider: &'static str,
    /// Outcome of the query: one of [`WebSearch::OUTCOMES`].
    pub outcome: &'static str,
}

impl WebSearch {
    /// The kinds of engines.
    pub const PROVIDERS: [&str; 4] = ["brave", "searxng", "tavily", "json"];
    /// Outcomes of queries: with a response, without a key, with one that is refused, over the quota or the rate, with
    /// another error of HTTP, with no response or none that can be read, or too late.
    pub const OUTCOMES: [&str; 9] = [
        "ok",
        "no_key",
        "key_refused",
        "over_quota",
        "rate_limited",
        "http_error",
        "unreachable",
        "invalid",
        "timeout",
    ];
}

/// Receives what happens with other agents. Implementations neither block nor fail.
pub trait AgentEvents: Send + Sync + 'static {
    /// An announcement was heard; `outcome` is one of [`AgentOutcomes::ANNOUNCEMENTS`].
    fn announced(&self, outcome: &'static str);

    /// A message about a task has arrived; `outcome` is one of [`AgentOutcomes::TASK_MESSAGES`].
    fn task_message(&self, outcome: &'static str);

    /// A task has ended; `outcome` is one of [`AgentOutcomes::TASKS`].
    fn task_ended(&self, outcome: &'static str);
}

/// The outcomes that [`AgentEvents`] receives.
#[derive(Debug, Clone, Copy)]
pub struct AgentOutcomes;

impl AgentOutcomes {
    /// Outcomes of announcements: of an agent that was not known, of one that was, of one that goes; ignored because
    /// the configuration has the agent, because the sender is another, has another spelling of a name that is taken,
    /// because there are too many agents, or because it cannot be read.
    pub const ANNOUNCEMENTS: [&str; 8] =
        ["new", "known", "left", "well_known", "not_own", "taken", "full", "malformed"];
    /// Outcomes of messages about tasks: taken as the result, or as its state; ignored because there is no such task,
    /// because the agent was not given the task, because it names another task, because the task had a result or was
    /// given up, because it cannot be read, or because the store is away.
    pub const TASK_MESSAGES: [&str; 9] = [
        "result",
        "state",
        "unknown_task",
        "not_asked",
        "uncorrelated",
        "repeated",
        "late",
        "malformed",
        "store_unavailable",
    ];
    /// Ends of tasks: as the agent reports, without a result in time, or not given because the agent does not take
    /// them.
    pub const TASKS: [&str; 6] = ["completed", "failed", "canceled", "input_required", "timeout", "not_sent"];
}

/// Receives what sub-agents report. Implementations neither block nor fail.
pub trait SubagentEvents: Send + Sync + 'static {
    /// A report that was taken, or not: one of the outcomes.
    fn reported(&self, outcome: &'static str);
}

impl dyn SubagentEvents {
    /// Outcomes of reports: taken, of no task, of an agent that was not given the task, of another agent than the one
    /// that works on the task, of a task that has ended, or lost because the task could not be changed.
    pub const OUTCOMES: [&'static str; 6] = ["taken", "no_task", "not_asked", "another_works", "ended", "lost"];
}

/// Ignores all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct Discard;

impl McpClientEvents for Discard {
    fn operation(&self, _: &McpClientOperation<'_>) {}

    fn session(&self, _: &McpClientSession<'_>) {}
}

impl ScriptEvents for Discard {
    fn run(&self, _: &ScriptRun) {}
}

impl WebEvents for Discard {
    fn fetched(&self, _: &WebFetch) {}

    fn searched(&self, _: &WebSearch) {}
}

impl AgentEvents for Discard {
    fn announced(&self, _: &'static str) {}

    fn task_message(&self, _: &'static str) {}

    fn task_ended(&self, _: &'static str) {}
}

impl SubagentEvents for Discard {
    fn reported(&self, _: &'static str) {}
}

impl McpServerEvents for Discard {
    fn started(&self, _: &McpServerOperation<'_>) -> Box<dyn McpServerRequest> {
        Box::new(Self)
    }

    fn session_ended(&self, _: &str, _: &str, _: Duration) {}
}

impl McpServerRequest for Discard {
    fn trace(&self) -> Option<TraceContext> {
        None
    }

    fn finished(self: Box<Self>, _: Option<&str>, _: Option<&str>) {}
}
