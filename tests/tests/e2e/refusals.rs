//! Counting of calls that were refused: each with a status of its own.

use std::collections::BTreeMap;

use serde_json::json;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::daemon::Daemon;
use toolbus_testing::otlp::Receiver;

use toolbus_e2e::metrics::{count, sum};

const RULES: &str = r#"
[identity]
trust_headers = true

[outbound.phone]
tools = ["work"]
recipients = ["/id"]
compare = "digits"

[agents.ana]
denied_tools = ["hidden"]
outbound_allowlist = { phone = ["123"] }
tool_rate_limits = { work = { rps = 0.001, burst = 1 } }
max_in_flight = 1
max_queued = 0
"#;

#[tokio::test]
async fn refused_calls_are_counted_with_their_own_status() {
    let backend = Backend::start().await;
    let receiver = Receiver::start().await.unwrap();
    let tools = [("work", "/work"), ("hidden", "/work"), ("hold", "/gate")];
    let tools = tools.map(|(name, path)| backend.tool(name, &format!("{path}?id={{id}}"), ""));
    let exporter = format!("[telemetry]\notlp_endpoint = \"{}\"\n", receiver.grpc_endpoint());
    let (site, daemon, client) = Daemon::with_client(&format!("{exporter}{RULES}{}", tools.concat())).await;
    let by_ana = |tool: &str, id: &str| client.request(tool, &json!({"id": id})).by("ana");
    let held = by_ana("hold", "held");
    client.send(&held).await;
    backend.wait_for("held").await;
    let mut codes = Vec::new();
    for (tool, id) in
        [("hidden", "1"), ("absent", "1"), ("work", "999"), ("work", "123"), ("work", "123"), ("hold", "2")]
    {
        codes.push(client.exchange(&by_ana(tool, id)).await.code());
    }
    // The token was spent by the call that found no slot: a refusal at the last step is a call all the same.
    assert_eq!(codes, ["tool_not_found", "tool_not_found", "not_allowed", "overloaded", "rate_limited", "overloaded"]);
    backend.open();
    assert_eq!(client.reply(&held).await.content(), "passed held");
    daemon.stop(&site).await;

    let expected = [
        ("_unknown", "tool_not_found", 2),
        ("work", "not_allowed", 1),
        ("work", "rate_limited", 1),
        ("work", "overloaded", 1),
        ("hold", "overloaded", 1),
        ("hold", "ok", 1),
        ("hidden", "tool_not_found", 0),
        ("work", "ok", 0),
    ];
    let counted: BTreeMap<_, _> = expected
        .iter()
        .map(|(tool, status, _)| {
            let labels = [("tool_name", *tool), ("status", *status)];
            ((*tool, *status), sum(&receiver, "rockbot.tool.invocations", &labels))
        })
        .collect();
    assert_eq!(counted, expected.iter().map(|(tool, status, count)| ((*tool, *status), *count)).collect());
    assert_eq!(sum(&receiver, "rockbot.tool.invocations", &[]), 7);
    assert_eq!(count(&receiver, "messaging.process.duration", &[]), 7);
}
