//! OpenAPI specifications at addresses: read at the start and at each reload.
//!
//! A service that is away must not keep the daemon from starting. So only the tools of a specification that cannot be
//! read are missing, and after a reload its previous ones stay.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::header::{ACCEPT, HeaderValue};
use reqwest::{Method, Request};
use tokio::task::spawn_blocking;
use toolbus_outbound::{HttpClient, HttpReply, read_up_to};
use toolbus_tools::rest::{DescribedEndpoints, OpenApiConfig, RestClient};
use url::Url;

use crate::config::Config;
use crate::config::described::{key_of, specification};

/// Longest wait for a specification.
const PATIENCE: Duration = Duration::from_secs(20);
/// Largest specification, in bytes.
const MAX_SPECIFICATION: usize = 16 * 1024 * 1024;

/// The same configuration with the endpoints of its specifications at addresses, and notes on these. For a
/// specification that cannot be read, `running` has the previous endpoints.
pub(crate) async fn with_specifications(config: &Config, running: Option<&Config>) -> (Config, Vec<String>) {
    let mut next = config.clone();
    let at_addresses = config.rest.openapi.iter().filter_map(|(name, one)| Some((name, one, one.url.as_deref()?)));
    let mut notes = Vec::new();
    for (name, read) in
        join_all(at_addresses.map(|(name, one, url)| async move { (name, read(config, one, url).await) })).await
    {
        let key = key_of(name);
        let read = read.and_then(|described| distinct(&next, described));
        match read {
            Ok(described) => {
                notes.extend(described.notes.iter().map(|note| format!("{key}: {note}")));
                next.rest.described.insert(key, described);
            }
            Err(what) => {
                // Its tools are those of the same section alone.
                let is_same = |running: &&Config| running.rest.openapi.get(name) == config.rest.openapi.get(name);
                let before = running.filter(is_same).and_then(|running| running.rest.described.get(&key)).cloned();
                let before = before.and_then(|described| distinct(&next, described).ok());
                let outcome = match before {
                    Some(described) => {
                        next.rest.described.insert(key.clone(), described);
                        "its tools stay as they were"
                    }
                    None => "it has no tools until a reload finds it",
                };
                notes.push(format!("{key}: {what}; {outcome}"));
            }
        }
    }
    (next, notes)
}

/// Fetches and reads a specification.
async fn read(config: &Config, section: &OpenApiConfig, url: &str) -> Result<DescribedEndpoints, String> {
    let text = tokio::time::timeout(PATIENCE, fetch(url)).await;
    let text = text.unwrap_or_else(|_| Err(format!("there was no answer within {} s", PATIENCE.as_secs())))?;
    let (section, rules, name) = (section.clone(), config.egress_rules(), "the specification".to_owned());
    // A large one takes a while.
    let read = spawn_blocking(move || {
        let client = RestClient::new(rules.clone()).map_err(|error| error.to_string())?;
        specification(&name, &text, &section, &rules, &client).map_err(|error| error.to_string())
    });
    read.await.unwrap_or_else(|error| Err(error.to_string()))
}

async fn fetch(url: &str) -> Result<String, String> {
    let url = Url::parse(url).map_err(|error| error.to_string())?;
    let client = HttpClient::new().map_err(|error| error.to_string())?;
    let mut request = Request::new(Method::GET, url);
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json, application/yaml, */*;q=0.5"));
    let mut response = match client.send(request).await {
        Ok(HttpReply::Response(response)) if response.status().is_success() => response,
        Ok(HttpReply::Response(response)) => return Err(format!("the answer was HTTP {}", response.status())),
        Ok(HttpReply::Redirect(status, error)) => {
            return Err(format!("HTTP {status}: the redirect was not followed, because {error}"));
        }
        Err(error) if error.error.is_connect() => return Err("its host cannot be reached".to_owned()),
        Err(_) => return Err("the request failed".to_owned()),
    };
    match read_up_to(&mut response, MAX_SPECIFICATION).await {
        Ok((bytes, true)) => String::from_utf8(bytes).map_err(|_| "the answer is not UTF-8".to_owned()),
        Ok((_, false)) => Err("it is larger than 16 MiB".to_owned()),
        Err(_) => Err("the answer broke off".to_owned()),
    }
}

/// The same, unless another tool has one of its names.
fn distinct(config: &Config, described: DescribedEndpoints) -> Result<DescribedEndpoints, String> {
    let taken: BTreeSet<Arc<str>> = config.tool_names().into_iter().collect();
    match described.endpoints.iter().find(|endpoint| taken.contains(&*endpoint.name)) {
        Some(endpoint) => {
            Err(format!("another tool has the name `{}`; write a `prefix`, or `exclude` it", endpoint.name))
        }
        None => Ok(described),
    }
}
