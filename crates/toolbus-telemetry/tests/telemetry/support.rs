//! Calls without a bus: deliveries without a publisher, reported step by step as the dispatcher does.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use toolbus_core::Clock;
use toolbus_core::bus::{BusState, Delivery, Settle};
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::{Cause, Status};
use toolbus_core::redact::Redactor;
use toolbus_core::secret::Secret;
use toolbus_core::telemetry::{CallEnd, CallSummary, Load, Telemetry};
use toolbus_core::tool::ToolDescriptor;
use toolbus_protocol::{Code, Properties, TraceContext};
use toolbus_telemetry::{BusIdentity, Exporters, Protocol, TelemetrySettings, logging};
use toolbus_testing::log::LogCapture;
use toolbus_testing::otlp::Receiver;

/// Longest time that a test gives a collector that responds.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
pub(crate) const OK: CallEnd = CallEnd { status: Status::Ok, cause: None };
pub(crate) const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
pub(crate) const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

/// Exporters, what it records with, and the state that its gauges look at.
pub(crate) struct Daemon {
    pub(crate) exporters: Exporters,
    pub(crate) telemetry: Arc<dyn Telemetry>,
    pub(crate) bus: watch::Sender<BusState>,
    pub(crate) load: Arc<Load>,
    redactor: Redactor,
}

impl Daemon {
    /// One that exports to `receiver`, with these variables.
    pub(crate) fn start(receiver: &Receiver, protocol: Protocol, variables: &[(&str, &str)]) -> Self {
        let endpoint = match protocol {
            Protocol::Grpc => receiver.grpc_endpoint(),
            Protocol::HttpProtobuf => receiver.http_endpoint(),
        };
        Self::with(Some(endpoint), protocol, variables, rabbit())
    }

    /// The same over gRPC, with its receiver.
    pub(crate) async fn with_receiver(variables: &[(&str, &str)]) -> (Receiver, Self) {
        let receiver = Receiver::start().await.unwrap();
        let daemon = Self::start(&receiver, Protocol::Grpc, variables);
        (receiver, daemon)
    }

    /// Runs `speak` with the log of this daemon, and returns its lines.
    pub(crate) fn logged(&self, filter: &str, secrets: &[&str], speak: impl FnOnce()) -> String {
        let page = LogCapture::default();
        self.redactor.configure(secrets.iter().map(|secret| Secret::new(*secret)));
        let settings =
            logging::LogSettings { filter: filter.to_owned(), format: logging::LogFormat::Text, coloured: false };
        let redactor = self.redactor.clone();
        let subscriber = logging::subscriber(&settings, redactor, Some(&self.exporters), page.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, speak);
        page.text()
    }

    pub(crate) fn with(
        otlp_endpoint: Option<String>,
        protocol: Protocol,
        variables: &[(&str, &str)],
        identity: BusIdentity,
    ) -> Self {
        let redactor = Redactor::default();
        let settings = TelemetrySettings {
            otlp_endpoint,
            protocol,
            scraped: false,
            service_name: "toolbus".into(),
            service_version: "0.0.0-test".into(),
            service_instance: "here".into(),
            redactor: redactor.clone(),
            clock: Clock::SYSTEM,
        };
        let look_up = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let exporters = Exporters::start(&settings, &look_up).unwrap();
        let (bus, state) =
            watch::channel(BusState { depths: [("toolbus.invoke".to_owned(), 3)].into(), ..BusState::default() });
        let load = Arc::<Load>::default();
        let telemetry = exporters.telemetry(&load, &state, identity);
        Self { exporters, telemetry, bus, load, redactor }
    }

    /// Ends it, with everything exported.
    pub(crate) async fn end(self) {
        self.exporters.shutdown(LIMIT).await.unwrap();
    }
}

pub(crate) fn rabbit() -> BusIdentity {
    BusIdentity {
        system: "rabbitmq",
        exchange: "rockbot".into(),
        client_id: "toolbus-1".into(),
        server_address: Some("broker.example".into()),
        server_port: Some(5672),
    }
}

pub(crate) fn embedded() -> BusIdentity {
    BusIdentity { system: "toolbus", server_address: None, server_port: None, ..rabbit() }
}

pub(crate) fn parent(traceparent: &str) -> TraceContext {
    TraceContext::parse(traceparent, Some("vendor=1")).unwrap()
}

pub(crate) fn refused(code: Code, cause: Cause) -> CallEnd {
    CallEnd { status: Status::Refused(code), cause: Some(cause) }
}

pub(crate) fn tool(name: &str) -> ToolDescriptor {
    ToolDescriptor::new(name, "rest", "rest")
}

/// An agent of the configuration.
pub(crate) fn agent(name: &str) -> Caller {
    Caller::agent(AgentName::parse(name).unwrap())
}

/// Settles nothing, since there is no bus.
struct NoBus;

impl Settle for NoBus {
    fn acknowledge(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }

    fn requeue(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}

pub(crate) fn delivery(properties: Properties) -> Delivery {
    Delivery {
        properties: properties.into(),
        body: bytes::Bytes::from_static(b"{}"),
        size: 2,
        queue: "toolbus.invoke".into(),
        routing_key: "tool.invoke".into(),
        redelivered: false,
        earlier_deliveries: 0,
        delivery_tag: 7,
        arrived: Clock::SYSTEM.now(),
        settle: Box::new(NoBus),
    }
}

pub(crate) fn request() -> Properties {
    Properties {
        message_id: Some("message-1".into()),
        correlation_id: Some("conversation-1".into()),
        ..Properties::default()
    }
}

/// Description of a call, before it is reported.
pub(crate) struct Script<'a> {
    pub(crate) properties: Properties,
    pub(crate) parent: Option<TraceContext>,
    /// The tool that runs; without, the call is refused before one is found.
    pub(crate) tool: Option<&'a ToolDescriptor>,
    pub(crate) caller: Caller,
    pub(crate) end: CallEnd,
    pub(crate) delivered: bool,
    /// Whether the reply was given before.
    pub(crate) replayed: bool,
}

/// The contexts that went on to the tool and with the reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Carried {
    pub(crate) trace_id: Option<String>,
    pub(crate) tool: Option<TraceContext>,
    pub(crate) reply: Option<TraceContext>,
}

impl Script<'_> {
    pub(crate) fn of(tool: Option<&ToolDescriptor>, end: CallEnd) -> Script<'_> {
        let (caller, delivered) = (Caller::unknown(), true);
        Script { properties: request(), parent: None, tool, caller, end, delivered, replayed: false }
    }

    /// Reports the call as the dispatcher does.
    pub(crate) fn tell(self, telemetry: &dyn Telemetry) -> Carried {
        let mut span = telemetry.arrived(&delivery(self.properties), self.parent.as_ref());
        let trace_id = span.trace_id().map(str::to_owned);
        let mut to_tool = None;
        if let Some(tool) = self.tool {
            to_tool = span.executing(tool, "call-1", &self.caller);
            span.executed(&self.end, Duration::from_millis(20));
        }
        let reply = span.publishing("answer-1");
        span.published(self.delivered, Duration::from_millis(2));
        span.finished(&CallSummary {
            caller: Some(&self.caller),
            tool: self.tool,
            requested: "get_weather",
            call_id: "call-1",
            end: Some(self.end),
            replayed: self.replayed,
            attached: false,
            idempotency_key: None,
            invoke: Duration::from_millis(21),
            total: Duration::from_millis(24),
            waited: Duration::ZERO,
            overhead: Duration::from_micros(400),
        });
        Carried { trace_id, tool: to_tool, reply }
    }
}
