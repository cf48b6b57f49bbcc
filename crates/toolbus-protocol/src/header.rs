//! Headers that mean something, by their envelope names.
//!
//! A peer's transport puts `rb-` before every envelope header, and the peers' own constants start with `rb-` already,
//! so `rb-timeout-ms` travels as `rb-rb-timeout-ms`. Both spellings are read, the doubled one first; the doubled one is
//! written.

/// The sender's name; single spelling only.
pub const SOURCE: &str = "rb-source";
/// On replies, the caller; single spelling only.
pub const DESTINATION: &str = "rb-destination";
/// The caller's budget in milliseconds, greater than zero.
pub const TIMEOUT_MS: &str = "rb-timeout-ms";
/// The profile that the caller requests: see `docs/policy.md`.
pub const TOOL_PROFILE: &str = "rb-tool-profile";
/// The binding that the caller requests, as `channel:account`.
pub const BINDING: &str = "rb-binding";
/// On tasks of agents, the agent that gave it to the daemon.
pub const ON_BEHALF_OF: &str = "rb-on-behalf-of";
/// On results of tasks, the agent that they come from.
pub const ANSWERING_AGENT: &str = "rb-answering-agent";
/// Daemons that have passed a call on: 0 to 4. Set between daemons.
pub const HOPS: &str = "rb-hops";
/// The MCP server whose tool is called, in any case.
pub const MCP_SERVER: &str = "rb-mcp-server";
/// The model that the caller works for, as the configuration of long results names it.
pub const MODEL: &str = "rb-model";
/// `1`: the caller wants progress reports.
pub const PROGRESS: &str = "rb-progress";
/// `1`: the caller wants the structured part of a result in a block of its own.
pub const STRUCTURED_CONTENT: &str = "rb-structured-content";
/// `1`: the caller wants a link to each part of a result that was split.
pub const RESOURCE_LINKS: &str = "rb-resource-links";
/// The key by which the caller identifies its request, so that it is never run twice; `tool-call-id` stands for the
/// request's call id.
pub const IDEMPOTENCY_KEY: &str = "rb-idempotency-key";
/// Value of [`IDEMPOTENCY_KEY`] that stands for the request's call id.
pub const TOOL_CALL_ID: &str = "tool-call-id";
/// Longest value of [`IDEMPOTENCY_KEY`], in bytes.
pub const MAX_IDEMPOTENCY_KEY: usize = 255;
/// Extent to which the content may be trusted.
pub const CONTENT_TRUST: &str = "rb-content-trust";
/// On replies, the kind of backend that ran: `local`, `rest`, …
pub const TOOL_PROVIDER: &str = "rb-tool-provider";
/// On replies, milliseconds that the request waited before the tool began.
pub const QUEUE_MS: &str = "rb-queue-ms";
/// On replies, milliseconds that the tool took.
pub const DURATION_MS: &str = "rb-duration-ms";
/// Trace context as a peer writes it.
pub const PEER_TRACEPARENT: &str = "rb-traceparent";
/// Vendor trace data as a peer writes it.
pub const PEER_TRACESTATE: &str = "rb-tracestate";
/// Trace context as the W3C names it.
pub const TRACEPARENT: &str = "traceparent";
/// Vendor trace data as the W3C names it.
pub const TRACESTATE: &str = "tracestate";
/// On dead letters of ours, why.
pub const DEAD_REASON: &str = "rb-dead-reason";
/// On dead letters of ours, where the reply should have gone.
pub const DEAD_REPLY_TO: &str = "rb-dead-reply-to";
/// On dead requests of ours, the topic that they came on.
pub const DEAD_TOPIC: &str = "rb-dead-topic";
/// On dead letters of ours, since when, in seconds since 1970.
pub const DEAD_SINCE: &str = "rb-dead-since";

/// Value of [`CONTENT_TRUST`] on every reply.
pub const TRUST_TOOL_OUTPUT: &str = "tool-output";
/// Value of [`CONTENT_TRUST`] on requests.
pub const TRUST_TOOL_REQUEST: &str = "tool-request";
/// Value of [`CONTENT_TRUST`] on announcements.
pub const TRUST_SYSTEM: &str = "system";

const PREFIX: &str = "rb-";

/// Whether a text can be a value of [`IDEMPOTENCY_KEY`]: 1 to [`MAX_IDEMPOTENCY_KEY`] bytes, without control characters.
#[must_use]
pub fn is_idempotency_key(text: &str) -> bool {
    (1..=MAX_IDEMPOTENCY_KEY).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// `name` as it is written on the wire.
#[must_use]
pub fn on_the_wire(name: &str) -> String {
    [PREFIX, name].concat()
}
