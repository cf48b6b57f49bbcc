//! A Prometheus that scrapes a daemon and evaluates the alerts that are shipped.

use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use toolbus_testing::patience::eventually;

use crate::daemon::Daemon;

/// The alerts that are shipped.
pub const ALERTS: &str = include_str!("../../deploy/prometheus/alerts.yml");

/// A Prometheus of the test's own that scrapes a daemon twice per second; it ends when dropped.
pub struct Prometheus {
    address: String,
    _process: Child,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts one with these rules.
    ///
    /// # Panics
    ///
    /// When there is no `prometheus`.
    pub async fn scraping(daemon: &Daemon, rules: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let configuration = format!(
            "global: {{ scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms }}\n\
             rule_files: [rules.yml]\nscrape_configs:\n\
             - {{ job_name: daemon, static_configs: [{{ targets: [{:?}] }}] }}\n",
            daemon.listen()
        );
        std::fs::write(folder.path().join("rules.yml"), rules).unwrap();
        std::fs::write(folder.path().join("prometheus.yml"), configuration).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let process = Command::new("prometheus")
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--enable-feature=exemplar-storage"])
            .arg(format!("--web.listen-address={free}"))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("no prometheus ({error}): run ./tests/run, which brings it"));
        let prometheus = Self { address: format!("http://{free}"), _process: process, _folder: folder };
        eventually("Prometheus", async || prometheus.get("status/config").await).await;
        prometheus
    }

    /// The data of a response; none while Prometheus does not respond with success.
    pub async fn get(&self, path: &str) -> Option<Value> {
        let url = format!("{}/api/v1/{path}", self.address);
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let reply = client.get(url).send().await.ok()?.bytes().await.ok()?;
        let reply: Value = serde_json::from_slice(&reply).ok()?;
        (reply["status"] == "success").then(|| reply["data"].clone())
    }

    /// The values that an expression has now, those apart that are no number.
    ///
    /// # Panics
    ///
    /// When Prometheus does not accept the expression.
    pub async fn values(&self, expression: &str) -> Vec<f64> {
        let escaped: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let data = self.get(&format!("query?query={escaped}")).await;
        let data = data.unwrap_or_else(|| panic!("Prometheus does not accept {expression}"));
        let values = data["result"].as_array().unwrap().iter().map(|series| series["value"][1].as_str().unwrap());
        values.map(|value| value.parse().unwrap()).filter(|value: &f64| !value.is_nan()).collect()
    }

    /// The alerts that fire now, with labels and annotations.
    ///
    /// # Panics
    ///
    /// When Prometheus does not respond.
    pub async fn firing(&self) -> Vec<Value> {
        let data = self.get("alerts").await.unwrap();
        let alerts = data["alerts"].as_array().unwrap();
        alerts.iter().filter(|alert| alert["state"] == "firing").cloned().collect()
    }
}
