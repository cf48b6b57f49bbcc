//! A call as its caller requests it, in any message format, and how it is read from a delivery.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use toolbus_protocol::message_type::{self, Kind};
use toolbus_protocol::{
    DEFAULT_SCRIPT_SECONDS, EXECUTE_PYTHON_SCRIPT, Envelope, ParseError, Random, ScriptInvokeRequest,
    ToolInvokeRequest, bounded, derived_message_id, header, topic,
};

use crate::Clock;
use crate::bus::Delivery;
use crate::caller::Caller;
use crate::deadline::TimeBudget;
use crate::failure::{Cause, ToolFailure};
use crate::reply_address::{Address, ReplyRules};
use crate::telemetry::DeadReason;
use crate::turns::{SMALL, Turns};

/// Longest tool name, call id or session id, in bytes: replies repeat the first two, and are small when they are
/// errors.
const MAX_ECHOED: usize = 1024;
/// Longest wait of a large body for a turn to be read.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Where a tool is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// Among all tools, by the name that they are registered with.
    Name,
    /// Among the tools of MCP servers: by the name that they are registered with, or else by their servers' own.
    AnyServer,
    /// Among the tools of this MCP server, by its own name for them.
    Server(&'a str),
}

/// The tool that a caller means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolRef<'a> {
    /// Where to look.
    pub route: Lookup<'a>,
    /// The name.
    pub name: &'a str,
}

impl<'a> ToolRef<'a> {
    /// The tool that is registered with this name.
    #[must_use]
    pub const fn named(name: &'a str) -> Self {
        Self { route: Lookup::Name, name }
    }
}

/// A delivery that is a request and can have a reply.
pub(crate) struct Request {
    pub(crate) envelope: Envelope,
    pub(crate) address: Address,
    pub(crate) caller: Arc<Caller>,
    pub(crate) call_id: Arc<str>,
    /// Whether the sender chose the call's id.
    pub(crate) has_call_id: bool,
    /// The tool, as the caller named it; empty when that could not be read.
    pub(crate) tool_name: String,
    /// Where the tool is looked for.
    pub(crate) route: RequestedSource,
    pub(crate) arguments: Option<String>,
    pub(crate) budget: TimeBudget,
    /// The form of the request, and of its reply.
    pub(crate) dialect: Dialect,
    /// Whether the caller wants to hear of progress.
    pub(crate) wants_progress: bool,
    /// The key by which the caller identifies the request.
    pub(crate) idempotency_key: Option<Arc<str>>,
}

/// The source in which a request looks for its tool.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum RequestedSource {
    /// Anywhere.
    Any,
    /// At some MCP server.
    AnyServer,
    /// At this MCP server.
    Server(String),
}

/// The form of the request for a tool, and of its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Dialect {
    /// The request names its tool.
    #[default]
    Tool,
    /// The request is for one tool, which runs scripts.
    Script,
}

impl Dialect {
    /// The form that is spoken on a topic.
    pub(crate) fn of(topic: &str) -> Self {
        if topic == topic::SCRIPT_INVOKE { Self::Script } else { Self::Tool }
    }

    /// The type of its requests.
    pub(crate) const fn request_type(self) -> &'static str {
        match self {
            Self::Tool => message_type::TOOL_INVOKE_REQUEST,
            Self::Script => message_type::SCRIPT_INVOKE_REQUEST,
        }
    }
}

impl RequestedSource {
    fn read(envelope: &Envelope, topic: &str) -> Self {
        if Dialect::of(topic) == Dialect::Script {
            // It is for one tool, whatever server a header names.
            return Self::Any;
        }
        match envelope.header(header::MCP_SERVER).map(str::trim) {
            Some(server) if !server.is_empty() => Self::Server(bounded(server).to_owned()),
            _ if topic == topic::TOOL_INVOKE_MCP => Self::AnyServer,
            _ => Self::Any,
        }
    }
}

impl Request {
    /// The tool that the caller means.
    pub(crate) fn wanted(&self) -> ToolRef<'_> {
        let route = match &self.route {
            RequestedSource::Any => Lookup::Name,
            RequestedSource::AnyServer => Lookup::AnyServer,
            RequestedSource::Server(server) => Lookup::Server(server),
        };
        ToolRef { route, name: &self.tool_name }
    }

    /// Key that the caller shares limits under.
    pub(crate) fn sharer(&self) -> Arc<str> {
        self.caller.sharer(&self.address.written)
    }

    pub(crate) fn new(
        delivery: &Delivery,
        envelope: Envelope,
        address: Address,
        mut caller: Caller,
        request: ToolInvokeRequest,
        (clock, random): (Clock, Random),
    ) -> Self {
        let has_call_id = request.tool_call_id.is_some();
        caller.session = request.session_id.filter(|session| !session.is_empty()).map(Arc::from);
        // Not random where anything is known, so that a repeated reply is identical.
        let known = || match (&envelope.message_id, &*envelope.correlation_id) {
            (Some(id), _) => bounded(id).to_owned(),
            (None, "") => random.id(),
            (None, correlation_id) => derived_message_id(&caller.owner, "", correlation_id),
        };
        let call_id = request.tool_call_id.unwrap_or_else(known);
        Self {
            caller: caller.into(),
            call_id: call_id.into(),
            has_call_id,
            tool_name: request.tool_name,
            arguments: request.arguments,
            budget: TimeBudget::read(&envelope, clock.wall()),
            route: RequestedSource::read(&envelope, &delivery.routing_key),
            dialect: Dialect::of(&delivery.routing_key),
            wants_progress: envelope.header(header::PROGRESS).is_some_and(|value| value.trim() == "1"),
            idempotency_key: None,
            address,
            envelope,
        }
    }
}

/// Contents of a body, whatever its form.
struct RequestBody {
    request: ToolInvokeRequest,
    /// A missing field without which the request cannot be used.
    missing: Option<&'static str>,
}

/// Reason for which a body is not known.
enum Unread {
    Unusable(ParseError),
    /// No turn came.
    Late(ToolFailure),
}

/// Decoded delivery on a topic for requests.
pub(crate) enum Decoded {
    /// A request that can be run.
    Call(Request),
    /// A request that is refused as it stands.
    Refused(Request, ToolFailure),
    /// A reply or an announcement: no request. The delivery is acknowledged and gets no reply.
    Ignored,
    /// The delivery can neither be run nor get a reply.
    Dead(DeadReason, String),
}

/// Reads deliveries.
pub(crate) struct Decoder<'a> {
    /// Rules of the addresses that replies may go to.
    pub(crate) rules: &'a ReplyRules,
    /// Largest body of a request, in bytes.
    pub(crate) max_body: usize,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
}

impl Decoder<'_> {
    /// Reads a delivery: a large body in a turn among those of its caller and others. The size is checked before
    /// anything is parsed.
    pub(crate) async fn decode_in_turn(
        &self,
        delivery: &Delivery,
        envelope: Envelope,
        caller: Caller,
        turns: &Turns,
    ) -> Decoded {
        let (dialect, body) = (Dialect::of(&delivery.routing_key), delivery.body.clone());
        if body.len() <= SMALL || delivery.size > self.max_body {
            return self.decode(delivery, envelope, caller);
        }
        let (owner, latest) = (caller.sharer(&envelope.reply_to), self.clock.now() + 2 * MAX_WAIT);
        let body = match turns.run(owner, body.len(), latest, move || read(dialect, &body)).await {
            Ok((body, _)) => body.map_err(Unread::Unusable),
            Err(late) => Err(Unread::Late(late)),
        };
        self.decode_with(delivery, envelope, caller, || body)
    }

    /// Reads a delivery.
    pub(crate) fn decode(&self, delivery: &Delivery, envelope: Envelope, caller: Caller) -> Decoded {
        let body = || read(Dialect::of(&delivery.routing_key), &delivery.body).map_err(Unread::Unusable);
        self.decode_with(delivery, envelope, caller, body)
    }

    fn decode_with(
        &self,
        delivery: &Delivery,
        envelope: Envelope,
        caller: Caller,
        body: impl FnOnce() -> Result<RequestBody, Unread>,
    ) -> Decoded {
        let dialect = Dialect::of(&delivery.routing_key);
        match message_type::kind(&envelope.message_type, dialect.request_type()) {
            Kind::Request | Kind::Plain => {}
            Kind::Reply => return Decoded::Ignored,
            Kind::Foreign => {
                let detail = format!("type {:?} does not belong on this topic", envelope.message_type);
                return Decoded::Dead(DeadReason::UnknownType, detail);
            }
        }
        let address = match self.rules.check_call(&envelope, &delivery.routing_key, &caller) {
            Ok(address) => address,
            Err(refused) => return Decoded::Dead(DeadReason::ReplyToRefused, refused.to_string()),
        };
        let size = delivery.size;
        if size > self.max_body {
            let text = format!("The request has {size} bytes; at most {} are taken. Send less.", self.max_body);
            return self.refused(delivery, envelope, address, caller, unread(dialect), text);
        }
        match body() {
            Ok(mut body) => match unusable(&mut body) {
                None => identified(self.request(delivery, envelope, address, caller, body.request)),
                Some(text) => self.refused(delivery, envelope, address, caller, body.request, text),
            },
            Err(Unread::Late(failure)) => {
                Decoded::Refused(self.request(delivery, envelope, address, caller, unread(dialect)), failure)
            }
            Err(Unread::Unusable(
                error @ (ParseError::NotUtf8 { .. }
                | ParseError::Compressed
                | ParseError::NotJson(_)
                | ParseError::NotAnObject(_)),
            )) if envelope.reply_to.is_empty() => Decoded::Dead(DeadReason::Malformed, error.to_string()),
            Err(Unread::Unusable(error)) => {
                let text = format!("The request is not usable: {error}.");
                self.refused(delivery, envelope, address, caller, unread(dialect), text)
            }
        }
    }

    fn request(
        &self,
        delivery: &Delivery,
        envelope: Envelope,
        address: Address,
        caller: Caller,
        request: ToolInvokeRequest,
    ) -> Request {
        Request::new(delivery, envelope, address, caller, request, (self.clock, self.random))
    }

    fn refused(
        &self,
        delivery: &Delivery,
        envelope: Envelope,
        address: Address,
        caller: Caller,
        request: ToolInvokeRequest,
        text: String,
    ) -> Decoded {
        let request = self.request(delivery, envelope, address, caller, request);
        Decoded::Refused(request, ToolFailure::new(Cause::MalformedRequest, text))
    }
}

/// The idempotency key that a request gives, by [`header::IDEMPOTENCY_KEY`]; `None` if it gives none.
///
/// # Errors
///
/// [`Cause::InvalidArguments`] if it is no key, or stands for a call id that is not there.
fn idempotency_key(given: Option<&str>, call_id: Option<&str>) -> Result<Option<Arc<str>>, ToolFailure> {
    let Some(key) = given else { return Ok(None) };
    let name = header::IDEMPOTENCY_KEY;
    if key == header::TOOL_CALL_ID {
        let missing =
            || ToolFailure::invalid(format!("'{name}' is '{key}', and the request has no toolCallId. Give it one."));
        return call_id.map(|id| Some(Arc::from(id))).ok_or_else(missing);
    }
    if !header::is_idempotency_key(key) {
        let most = header::MAX_IDEMPOTENCY_KEY;
        return Err(ToolFailure::invalid(format!("'{name}' must have 1 to {most} bytes, without control characters.")));
    }
    Ok(Some(key.into()))
}

/// The request with the key that its caller gives it.
fn identified(mut request: Request) -> Decoded {
    let call_id = request.has_call_id.then_some(&*request.call_id);
    match idempotency_key(request.envelope.header(header::IDEMPOTENCY_KEY), call_id) {
        Ok(key) => {
            request.idempotency_key = key;
            Decoded::Call(request)
        }
        Err(failure) => Decoded::Refused(request, failure),
    }
}

/// Reason why a request that was read cannot be used. Cuts what is too long, because the reply repeats it.
fn unusable(RequestBody { request, missing }: &mut RequestBody) -> Option<String> {
    let mut text = None;
    let fields = [
        ("toolName", Some(&mut request.tool_name)),
        ("toolCallId", request.tool_call_id.as_mut()),
        ("sessionId", request.session_id.as_mut()),
    ];
    for (field, value) in fields {
        if let Some(value) = value.filter(|value| value.len() > MAX_ECHOED) {
            let size = value.len();
            text = Some(format!("The {field} has {size} bytes; at most {MAX_ECHOED} are taken. Use a shorter one."));
            *value = bounded(value).to_owned();
        }
    }
    if let Some(field) = *missing {
        text = Some(format!("The request is not usable: {}.", ParseError::Missing(field)));
    }
    text
}

/// Reads a body, also one in which something is missing, because its refusal names the call.
fn read(dialect: Dialect, body: &[u8]) -> Result<RequestBody, ParseError> {
    match dialect {
        Dialect::Tool => {
            let request = ToolInvokeRequest::parse_unnamed(body)?;
            let missing = request.tool_name.is_empty().then_some("toolName");
            Ok(RequestBody { request, missing })
        }
        Dialect::Script => read_script(body),
    }
}

/// Known fields of a request whose body cannot be read.
fn unread(dialect: Dialect) -> ToolInvokeRequest {
    let tool_name = match dialect {
        Dialect::Tool => String::new(),
        Dialect::Script => EXECUTE_PYTHON_SCRIPT.to_owned(),
    };
    ToolInvokeRequest { tool_name, ..ToolInvokeRequest::default() }
}

/// Reads a request for a script: a call of the tool that runs scripts, which from then on is one like any other.
fn read_script(body: &[u8]) -> Result<RequestBody, ParseError> {
    let ScriptInvokeRequest { tool_call_id, script, input_data, timeout_seconds, pip_packages } =
        ScriptInvokeRequest::parse_empty(body)?;
    // Of a time that is none, peers make the usual one.
    let seconds = timeout_seconds.filter(|seconds| *seconds > 0).unwrap_or(DEFAULT_SCRIPT_SECONDS);
    let missing = script.is_none().then_some("script");
    let arguments: Map<String, Value> = [
        ("script", script.map(Value::from)),
        ("input_data", input_data.map(Value::from)),
        ("timeout_seconds", Some(seconds.into())),
        ("pip_packages", pip_packages.map(Value::from)),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name.to_owned(), value?)))
    .collect();
    let request = ToolInvokeRequest {
        tool_call_id,
        tool_name: EXECUTE_PYTHON_SCRIPT.to_owned(),
        arguments: Some(Value::from(arguments).to_string()),
        ..ToolInvokeRequest::default()
    };
    Ok(RequestBody { request, missing })
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn refusal(given: &str, call_id: Option<&str>) -> String {
        idempotency_key(Some(given), call_id).unwrap_err().message
    }

    #[test]
    fn a_key_is_bounded_and_its_refusal_names_the_header() {
        insta::assert_snapshot!(refusal("", None), @"'rb-idempotency-key' must have 1 to 255 bytes, without control characters.");
        for key in ["a\nb", &"x".repeat(256)] {
            assert_eq!(refusal(key, None), refusal("", None));
        }
        let long = "x".repeat(255);
        assert_eq!(idempotency_key(Some(&long), None).unwrap().as_deref(), Some(long.as_str()));
        assert_eq!(idempotency_key(None, Some("call_1")).unwrap(), None, "a call id alone is no key");
    }

    #[test]
    fn a_caller_may_have_its_call_id_as_the_key() {
        assert_eq!(idempotency_key(Some("tool-call-id"), Some("call_1")).unwrap().as_deref(), Some("call_1"));
        insta::assert_snapshot!(refusal("tool-call-id", None), @"'rb-idempotency-key' is 'tool-call-id', and the request has no toolCallId. Give it one.");
    }

    fn arguments(body: &str) -> String {
        let RequestBody { request, missing } = read_script(body.as_bytes()).unwrap();
        assert_eq!((&*request.tool_name, missing), (EXECUTE_PYTHON_SCRIPT, None));
        request.arguments.unwrap()
    }

    #[test]
    fn the_fields_of_a_request_become_the_arguments_of_the_tool() {
        let body = r#"{"toolCallId":"c","script":"pass","inputData":"{}","timeoutSeconds":5,"pipPackages":["a","b"]}"#;
        assert_snapshot!(arguments(body), @r#"{"input_data":"{}","pip_packages":["a","b"],"script":"pass","timeout_seconds":5}"#);
        assert_eq!(read_script(body.as_bytes()).unwrap().request.tool_call_id.as_deref(), Some("c"));
    }

    #[test]
    fn fields_that_a_request_omits_are_no_arguments_except_the_timeout() {
        let body = r#"{"script":"","inputData":null,"timeoutSeconds":null,"pipPackages":null}"#;
        assert_snapshot!(arguments(body), @r#"{"script":"","timeout_seconds":30}"#);
    }

    #[test]
    fn a_timeout_that_is_not_positive_is_the_default() {
        for seconds in [0, -1, i64::MIN] {
            let body = format!(r#"{{"script":"","timeoutSeconds":{seconds}}}"#);
            assert_eq!(arguments(&body), r#"{"script":"","timeout_seconds":30}"#);
        }
    }

    #[test]
    fn a_request_without_a_script_names_its_call_all_the_same() {
        let RequestBody { request, missing } = read_script(br#"{"toolCallId":"c"}"#).unwrap();
        assert_eq!((request.tool_call_id.as_deref(), missing), (Some("c"), Some("script")));
    }
}
