//! `docs/telemetry.md` against what arrives, in both directions.

use std::collections::{BTreeMap, BTreeSet};

use toolbus_core::caller::Caller;
use toolbus_core::events::{McpServerEvents as _, McpServerOperation};
use toolbus_core::failure::{Cause, Status};
use toolbus_core::ledger::{LedgerLimits, LedgerUsage};
use toolbus_core::telemetry::{CallEnd, CallSummary, DeadReason, LedgerEvent};
use toolbus_core::tool::ToolDescriptor;
use toolbus_protocol::{Code, Properties};
use toolbus_telemetry::{BusIdentity, Protocol};
use toolbus_testing::otlp::Receiver;
use toolbus_testing::patience::eventually;

use crate::agents;
use crate::clients;
use crate::observed::{self, Attributes, Series};
use crate::pins;
use crate::scripts;
use crate::servers;
use crate::subagents;
use crate::support::{Daemon, OK, SAMPLED, Script, agent, delivery, embedded, parent, rabbit, refused, request, tool};
use crate::tables::{self, AttributeRow};
use crate::web;

/// Everything that arrived, from as many daemons as it takes to see every attribute both present and absent.
#[derive(Default)]
struct Arrived {
    metrics: BTreeMap<String, Series>,
    /// Kind and attributes of every span, by its name in the contract.
    spans: BTreeMap<String, Vec<(&'static str, Attributes)>>,
    resources: Vec<Attributes>,
}

impl Arrived {
    async fn over(protocol: Protocol) -> Self {
        let mut arrived = Self::default();
        for identity in [rabbit(), embedded()] {
            let receiver = Receiver::start().await.unwrap();
            call_in_every_way(&receiver, protocol, identity).await;
            arrived.add(&receiver);
        }
        arrived
    }

    fn add(&mut self, receiver: &Receiver) {
        for (name, series) in observed::metrics(receiver) {
            match self.metrics.get_mut(&name) {
                Some(known) => known.points.extend(series.points),
                None => drop(self.metrics.insert(name, series)),
            }
        }
        let names: Vec<String> = tables::spans().into_iter().map(|row| row.name).collect();
        for span in receiver.spans() {
            let prefix = |name: &&String| span.name.starts_with(name.split('{').next().unwrap_or_default());
            let name = names.iter().find(prefix).unwrap_or(&span.name).clone();
            let seen = (observed::kind(&span), observed::attributes(span.attributes));
            self.spans.entry(name).or_default().push(seen);
        }
        let resources = receiver.resources().into_iter();
        self.resources.extend(resources.map(|resource| observed::attributes(resource.attributes)));
    }
}

/// Every end that a call can have, with and without what a caller may leave out.
async fn call_in_every_way(receiver: &Receiver, protocol: Protocol, identity: BusIdentity) {
    let endpoint = match protocol {
        Protocol::Grpc => receiver.grpc_endpoint(),
        Protocol::HttpProtobuf => receiver.http_endpoint(),
    };
    let daemon = Daemon::with(Some(endpoint), protocol, &[], identity);
    let telemetry = &*daemon.telemetry;
    let weather = tool("weather");
    let codes = Code::ALL.into_iter().map(|code| refused(code, Cause::Failed));
    let causes = Cause::ALL.into_iter().map(|cause| refused(Code::ExecutionFailed, cause));
    let others = [OK, CallEnd { status: Status::Error, cause: None }];
    let without_cause = CallEnd { status: Status::Refused(Code::Timeout), cause: None };
    for end in codes.chain(causes).chain(others).chain([without_cause]) {
        let call = Script::of(Some(&weather), end);
        let caller = Caller { session: Some("session-1".into()), ..agent("ana") };
        Script { parent: Some(parent(SAMPLED)), caller, ..call }.tell(telemetry);
    }
    Script::of(None, refused(Code::ToolNotFound, Cause::UnknownTool)).tell(telemetry);
    Script { properties: Properties::default(), ..Script::of(Some(&weather), OK) }.tell(telemetry);
    let sent = Properties { timestamp: Some(1), ..request() };
    Script { properties: sent, ..Script::of(Some(&weather), OK) }.tell(telemetry);
    Script { delivered: false, ..Script::of(Some(&weather), OK) }.tell(telemetry);
    for reason in DeadReason::ALL {
        telemetry.dead_lettered("toolbus.invoke", reason);
    }
    for event in LedgerEvent::ALL {
        telemetry.ledger(event);
    }
    let limits = LedgerLimits { max_entries: 4, max_bytes: 5 };
    daemon.exporters.watch_ledger(limits, || LedgerUsage { entries: 1, bytes: 2, shed: 3 });
    telemetry.arrived(&delivery(request()), None).finished(&CallSummary::unanswered(std::time::Duration::ZERO));
    let of_server = ToolDescriptor { provider: "mcp", ..tool("read_file") };
    Script::of(Some(&of_server), OK).tell(telemetry);
    clients::ask_in_every_way(&daemon.exporters);
    pins::look(&daemon.exporters);
    servers::ask_in_every_way(&daemon.exporters);
    scripts::run_in_every_way(&daemon.exporters);
    agents::use_in_every_way(&daemon.exporters);
    web::use_in_every_way(&daemon.exporters);
    subagents::report_in_every_way(&daemon.exporters);
    daemon.end().await;
}

fn check(arrived: &Arrived) {
    let documented: BTreeSet<String> = tables::metrics().into_iter().map(|row| row.name).collect();
    assert_eq!(arrived.metrics.keys().cloned().collect::<BTreeSet<_>>(), documented, "names of metrics");
    for row in tables::metrics() {
        let series = &arrived.metrics[&row.name];
        let seen = (series.kind, series.unit.as_str(), series.bounds.as_slice());
        assert_eq!(seen, (row.kind.as_str(), row.unit.as_str(), row.bounds.as_slice()), "{}", row.name);
        let points: Vec<&Attributes> = series.points.iter().map(|(attributes, _)| attributes).collect();
        check_attributes(&row.name, &points, &tables::metric_attributes());
    }
    let documented: BTreeSet<String> = tables::spans().into_iter().map(|row| row.name).collect();
    assert_eq!(arrived.spans.keys().cloned().collect::<BTreeSet<_>>(), documented, "names of spans");
    for row in tables::spans() {
        let spans = &arrived.spans[&row.name];
        assert!(spans.iter().all(|(kind, _)| *kind == row.kind), "kind of {}", row.name);
        let attributes: Vec<&Attributes> = spans.iter().map(|(_, attributes)| attributes).collect();
        check_attributes(&row.name, &attributes, &tables::span_attributes());
    }
    assert!(!arrived.resources.is_empty());
    for resource in &arrived.resources {
        assert_eq!(resource.keys().cloned().collect::<BTreeSet<_>>(), tables::resource_attributes());
    }
}

fn check_attributes(owner: &str, seen: &[&Attributes], table: &[AttributeRow]) {
    let documented: Vec<&AttributeRow> = table.iter().filter(|row| row.owner == owner).collect();
    let keys: BTreeSet<&str> = seen.iter().flat_map(|attributes| attributes.keys()).map(String::as_str).collect();
    let expected: BTreeSet<&str> = documented.iter().map(|row| row.key.as_str()).collect();
    assert_eq!(keys, expected, "attributes of {owner}");
    for row in documented {
        let present = seen.iter().filter(|attributes| attributes.contains_key(&row.key)).count();
        assert_eq!(present == seen.len(), row.always, "{owner}: {} is always there: {}", row.key, row.always);
        if let Some(values) = &row.values {
            let found: BTreeSet<String> =
                seen.iter().filter_map(|attributes| attributes.get(&row.key)).cloned().collect();
            assert_eq!(&found, values, "{owner}: values of {}", row.key);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exports_over_grpc_are_as_documented() {
    check(&Arrived::over(Protocol::Grpc).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exports_over_http_are_as_documented() {
    check(&Arrived::over(Protocol::HttpProtobuf).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_whose_labels_are_known_begins_at_zero_and_is_exported_at_once() {
    let receiver = Receiver::start().await.unwrap();
    // Regular exports, every 60 s, come too late for this test.
    let daemon = Daemon::start(&receiver, Protocol::Grpc, &[]);
    let _scripts = daemon.exporters.scripts();
    daemon.telemetry.consuming("toolbus.invoke");
    daemon.exporters.export_now();
    let values = async |name: &str| {
        let metrics = observed::metrics(&receiver);
        let points = &metrics.get(name)?.points;
        Some(points.iter().map(|(_, value)| *value).collect::<Vec<_>>())
    };
    let known = [
        ("toolbus.dead_letters", DeadReason::ALL.len()),
        ("toolbus.ledger.events", LedgerEvent::ALL.len()),
        // Delivered, and not delivered.
        ("messaging.client.sent.messages", 2),
        // Twelve outcomes, of scripts that did not start, started cold, started warm, and were forked.
        ("toolbus.script.runs", 12 * 4),
    ];
    for (name, series) in known {
        assert_eq!(eventually(name, async || values(name).await).await, vec![0.0; series], "{name}");
    }
    daemon.telemetry.dead_lettered("toolbus.invoke", DeadReason::Malformed);
    daemon.end().await;
    let dead = &observed::metrics(&receiver)["toolbus.dead_letters"];
    let labels = [("queue", "toolbus.invoke"), ("reason", "malformed_request")];
    assert_eq!((dead.value(&labels), dead.points.len()), (Some(1.0), DeadReason::ALL.len()));
}

#[test]
fn every_attribute_belongs_to_a_documented_metric_or_span() {
    let metrics: BTreeSet<String> = tables::metrics().into_iter().map(|row| row.name).collect();
    let spans: BTreeSet<String> = tables::spans().into_iter().map(|row| row.name).collect();
    assert!(tables::metric_attributes().iter().all(|row| metrics.contains(&row.owner)));
    assert!(tables::span_attributes().iter().all(|row| spans.contains(&row.owner)));
}

#[tokio::test]
async fn without_an_endpoint_nothing_is_recorded_or_observed() {
    let daemon = Daemon::with(None, Protocol::Grpc, &[], rabbit());
    let exporters = &daemon.exporters;
    let sender = parent(SAMPLED);
    let request = McpServerOperation { parent: Some(&sender), ..clients::call() };
    assert!(exporters.mcp_server().started(&request).trace().is_none());
    clients::ask_in_every_way(exporters);
    servers::ask_in_every_way(exporters);
    scripts::run_in_every_way(exporters);
    exporters.watch_mcp_server(|| panic!("observed"));
    exporters.watch_mcp_client(|| panic!("observed"));
    exporters.watch_scripts(|| panic!("observed"));
    exporters.watch_pins(|| panic!("observed"));
    daemon.end().await;
}
