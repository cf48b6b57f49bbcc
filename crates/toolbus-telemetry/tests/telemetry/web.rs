//! Telemetry of the web tools.

use toolbus_core::events::{WebEvents as _, WebFetch, WebSearch};
use toolbus_telemetry::Exporters;

use crate::observed::metrics;
use crate::support::Daemon;

const READ: WebFetch = WebFetch { outcome: "ok", site: WebFetch::WEB, refusal: None, size: Some(30_000) };

/// Every end of a page and a query that the contract knows, and more.
pub(crate) fn use_in_every_way(exporters: &Exporters) {
    let recorder = exporters.web();
    for outcome in WebFetch::OUTCOMES.into_iter().chain(["exploded"]) {
        recorder.fetched(&WebFetch { outcome, ..READ });
    }
    for site in WebFetch::SITES.into_iter().chain(["elsewhere"]) {
        recorder.fetched(&WebFetch { site, ..READ });
    }
    for reason in WebFetch::REFUSALS.into_iter().chain(["dislike"]) {
        recorder.fetched(&WebFetch { outcome: "refused", refusal: Some(reason), size: None, ..READ });
    }
    for provider in WebSearch::PROVIDERS.into_iter().chain(["oracle"]) {
        for outcome in WebSearch::OUTCOMES.into_iter().chain(["guess"]) {
            recorder.searched(&WebSearch { provider, outcome });
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_refusals_and_queries_are_counted_and_a_received_page_has_a_size() {
    let (receiver, daemon) = Daemon::with_receiver(&[("OTEL_TRACES_EXPORTER", "none")]).await;
    let recorder = daemon.exporters.web();
    recorder.fetched(&READ);
    recorder.fetched(&WebFetch { site: WebFetch::GITHUB, size: None, ..READ });
    recorder.fetched(&WebFetch { outcome: "refused", refusal: Some("address"), size: None, ..READ });
    recorder.searched(&WebSearch { provider: "brave", outcome: "over_quota" });
    daemon.end().await;

    let metrics = metrics(&receiver);
    let value = |name: &str, labels: &[(&str, &str)]| metrics[&format!("toolbus.web.{name}")].value(labels);
    assert_eq!(value("fetches", &[("outcome", "ok"), ("site", "web")]), Some(1.0));
    assert_eq!(value("fetches", &[("outcome", "ok"), ("site", "github")]), Some(1.0));
    assert_eq!(value("fetches", &[("outcome", "refused"), ("site", "web")]), Some(1.0));
    assert_eq!(value("fetches", &[("outcome", "timeout"), ("site", "web")]), Some(0.0), "from the start");
    assert_eq!(value("refusals", &[("reason", "address")]), Some(1.0));
    assert_eq!(value("page.size", &[]), Some(1.0));
    assert_eq!(value("searches", &[("provider", "brave"), ("outcome", "over_quota")]), Some(1.0));
}
