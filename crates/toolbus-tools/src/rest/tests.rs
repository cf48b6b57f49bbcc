//! Endpoints against real servers on free ports.

mod agents;
mod hostile;
mod requests;
mod responses;
mod server;
mod tls;

use toolbus_core::tool::Tool;

use super::{HttpClient, Settings};

/// A schema that allows everything and declares what the templates in these tests use.
const ANY: &str = r#"{"type":"object","properties":{"a":{},"b":{}}}"#;

/// The tool `t` for `url`, changed by `change`.
fn tool(url: impl Into<String>, change: impl FnOnce(&mut Settings)) -> Tool {
    let mut settings = Settings::new("t", url);
    settings.parameters = Some(ANY.to_owned());
    change(&mut settings);
    super::tool(settings, &HttpClient::new().unwrap()).unwrap()
}
