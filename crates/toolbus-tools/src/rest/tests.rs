//! Endpoints against real servers on free ports.

mod agents;
mod hostile;
mod openapi;
mod requests;
mod responses;
mod server;
mod tls;
mod tokens;

use toolbus_core::tool::Tool;

use super::{Auth, Endpoint, RestClient};
use crate::Secret;

/// A schema that allows everything and declares what the templates in these tests use.
const ANY: &str = r#"{"type":"object","properties":{"a":{},"b":{}}}"#;

/// The tool `t` for `url`, changed by `change`.
fn tool(url: impl Into<String>, change: impl FnOnce(&mut Endpoint)) -> Tool {
    let mut settings = Endpoint::new("t", url);
    settings.parameters = Some(ANY.to_owned());
    change(&mut settings);
    super::tool(&settings, &RestClient::new(Default::default()).unwrap()).unwrap()
}

/// A token of every caller.
fn bearer(token: &str) -> Auth {
    Auth::Bearer { token: Some(token.into()), per_agent: None }
}

/// The value of a configured header.
fn header(name: &str, value: &str) -> (String, Secret) {
    (name.to_owned(), value.into())
}
