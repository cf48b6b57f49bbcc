//! Security schemes, and the credentials that the configuration has for them.

use std::collections::{BTreeMap, BTreeSet};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::AUTHORIZATION;
use serde_json::Value;
use toolbus_config::{Secret, expected};
use toolbus_core::text::shown;
use toolbus_core::tool::Effect;

use super::{OpenApiError, resolved};
use crate::rest::config::NO_HEADER;
use crate::rest::{Auth, Endpoint, Method, OpenApiConfig, SchemeCredential};

/// Carrier of a scheme with a credential.
#[derive(Debug, Clone)]
enum Carrier {
    /// By the `auth` of an endpoint.
    Auth(Auth),
    /// By a pair of the query: its name, and the key.
    Query(String, Secret),
}

/// The schemes of a specification.
pub(super) struct Schemes<'a> {
    /// Those with a credential.
    carriers: BTreeMap<&'a str, Carrier>,
    /// Schemes of the operations that declare none.
    default: Option<&'a Value>,
    /// Headers that the section gives all requests.
    headers: &'a BTreeMap<String, Secret>,
    /// The header that requests have their idempotency key in.
    key_header: Option<&'a str>,
}

/// Credentials and headers that authorise the requests of one operation.
#[derive(Debug, Default)]
pub(super) struct Authorisation {
    pub(super) auth: Option<Auth>,
    /// Names of headers that the section sets.
    given: Vec<String>,
    /// The header of the idempotency key, if requests have one.
    key_header: Option<String>,
    /// Headers of further schemes.
    pub(super) headers: BTreeMap<String, Secret>,
    /// The pair of the query, encoded, and its name.
    pub(super) query: Option<(String, String)>,
}

impl Authorisation {
    /// Whether an argument would stand where a credential, a header of the section or the idempotency key does.
    pub(super) fn takes(&self, location: &str, name: &str) -> bool {
        let of_auth = match &self.auth {
            Some(Auth::ApiKey { header, .. }) => Some(header.as_str()),
            Some(_) => Some(AUTHORIZATION.as_str()),
            None => None,
        };
        match location {
            "query" => self.query.as_ref().is_some_and(|(taken, _)| taken == name),
            "header" => {
                let own = self.headers.keys().chain(&self.given).map(String::as_str).chain(of_auth);
                own.into_iter().any(|own| own.eq_ignore_ascii_case(name)) || self.takes_key(location, name)
            }
            _ => false,
        }
    }

    /// Whether an argument would stand where the idempotency key does: a caller who repeats that of another would get the
    /// other's response.
    pub(super) fn takes_key(&self, location: &str, name: &str) -> bool {
        location == "header" && self.key_header.as_ref().is_some_and(|header| header.eq_ignore_ascii_case(name))
    }
}

impl<'a> Schemes<'a> {
    /// Puts the credentials of the section to the schemes of the document.
    ///
    /// # Errors
    ///
    /// If a credential is for a scheme that there is not, or has another form than it needs.
    pub(super) fn read(document: &'a Value, config: &'a OpenApiConfig) -> Result<Self, OpenApiError> {
        let schemes = document.pointer("/components/securitySchemes").and_then(Value::as_object);
        let names: Vec<&str> = schemes.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let refused = |what: String| OpenApiError::of_key("auth", what);
        let mut carriers = BTreeMap::new();
        for (name, credential) in &config.auth {
            let Some(scheme) = schemes.and_then(|schemes| schemes.get(name)) else {
                let hint = if names.is_empty() { "it has none".to_owned() } else { expected(name, &names) };
                return Err(refused(format!("the specification has no security scheme `{}`; {hint}", shown(name))));
            };
            let carrier = resolved(document, scheme).and_then(|scheme| carrier(scheme, credential));
            carriers.insert(name.as_str(), carrier.map_err(|what| refused(format!("`{}`: {what}", shown(name))))?);
        }
        let key_header = Some(&*config.idempotency_header).filter(|name| *name != NO_HEADER);
        Ok(Self { carriers, default: document.get("security"), headers: &config.headers, key_header })
    }

    /// Returns what authorises an operation: the first of the combinations that it takes for which there are
    /// credentials.
    pub(super) fn of(&self, operation: &Value, method: Method) -> Result<Authorisation, String> {
        let needed = operation.get("security").or(self.default).and_then(Value::as_array);
        let has_all = |schemes: &&Vec<&str>| schemes.iter().all(|scheme| self.carriers.contains_key(scheme));
        let combinations: Vec<Vec<&str>> = needed
            .into_iter()
            .flatten()
            .filter_map(Value::as_object)
            .map(|schemes| schemes.keys().map(String::as_str).collect())
            .collect();
        // One that needs nothing is for callers without credentials.
        let chosen = combinations.iter().filter(|schemes| !schemes.is_empty()).find(has_all);
        // An endpoint has one `auth`: what else can only be there comes before keys, which other headers carry as well.
        let is_shared_key = |scheme: &&str| {
            matches!(self.carriers.get(scheme), Some(Carrier::Auth(Auth::ApiKey { per_agent: None, .. })))
        };
        let mut chosen: Vec<&str> = chosen.into_iter().flatten().copied().collect();
        chosen.sort_by_key(is_shared_key);
        let given = self.headers.keys().cloned().collect();
        let key_header = self.key_header.filter(|_| method.effect() != Effect::ReadOnly).map(str::to_owned);
        let mut authorisation = Authorisation { given, key_header, ..Authorisation::default() };
        for scheme in &chosen {
            match self.carriers.get(scheme) {
                Some(Carrier::Query(name, key)) if authorisation.query.is_none() => {
                    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
                    authorisation.query = Some((name.clone(), format!("{}={}", encoded(name), encoded(key.expose()))));
                }
                Some(Carrier::Auth(auth)) if authorisation.auth.is_none() => authorisation.auth = Some(auth.clone()),
                Some(Carrier::Auth(Auth::ApiKey { header, key: Some(key), per_agent: None })) => {
                    authorisation.headers.insert(header.clone(), key.clone());
                }
                _ => return Err("it needs security schemes together that one request cannot carry".to_owned()),
            }
        }
        Ok(authorisation)
    }

    /// Notes of credentials that no operation uses.
    pub(super) fn notes(&self, endpoints: &[Endpoint]) -> Vec<String> {
        let is_used = |carrier: &Carrier| match carrier {
            Carrier::Auth(auth) => endpoints.iter().any(|endpoint| {
                let of_headers = |header: &str| endpoint.headers.keys().any(|own| own == header);
                endpoint.auth.as_ref() == Some(auth)
                    || matches!(auth, Auth::ApiKey { header, .. } if of_headers(header))
            }),
            Carrier::Query(name, _) => {
                let name = format!("{}=", utf8_percent_encode(name, NON_ALPHANUMERIC));
                endpoints.iter().any(|endpoint| endpoint.url.contains(&name))
            }
        };
        let idle = self.carriers.iter().filter(|(_, carrier)| !is_used(carrier));
        idle.map(|(name, _)| format!("`auth.{name}`: no operation that is a tool uses it")).collect()
    }

    /// The schemes, one of whose combinations an operation needs, where it has no credential; empty: it needs none.
    pub(super) fn lacking(&self, operation: &'a Value) -> BTreeSet<&'a str> {
        let needed = operation.get("security").or(self.default).and_then(Value::as_array);
        let combinations: Vec<_> = needed.into_iter().flatten().filter_map(Value::as_object).collect();
        let is_met = combinations.iter().any(|schemes| schemes.keys().all(|name| self.carriers.contains_key(&**name)));
        let names = combinations.iter().filter(|_| !is_met).flat_map(|schemes| schemes.keys());
        names.map(String::as_str).collect()
    }
}

fn carrier(scheme: &Value, credential: &SchemeCredential) -> Result<Carrier, String> {
    let text = |key: &str| scheme.get(key).and_then(Value::as_str).unwrap_or_default();
    let SchemeCredential { token, key, username, password, per_agent } = credential.clone();
    let given = [("token", token.is_some()), ("key", key.is_some())];
    let given = given.into_iter().chain([("username", username.is_some()), ("password", password.is_some())]);
    let given: Vec<&str> = given.filter(|(_, is_given)| *is_given).map(|(name, _)| name).collect();
    let (auth, of_form): (Auth, &[&str]) = match (text("type"), text("scheme").to_ascii_lowercase().as_str()) {
        ("apiKey", _) => match (text("in"), text("name")) {
            ("query", name) => {
                let Some(key) = key.filter(|_| per_agent.is_none() && given == ["key"]) else {
                    return Err("it is a key in the query; expected `key` alone".to_owned());
                };
                return Ok(Carrier::Query(name.to_owned(), key));
            }
            ("header", name) => (Auth::ApiKey { header: name.to_owned(), key, per_agent }, &["key"]),
            (location, _) => return Err(format!("keys in a {} are not sent; leave it out", shown(location))),
        },
        ("http", "basic") => (Auth::Basic { username, password, per_agent }, &["username", "password"]),
        ("http", "bearer") | ("oauth2" | "openIdConnect", _) => (Auth::Bearer { token, per_agent }, &["token"]),
        (kind, scheme) => {
            return Err(format!("schemes of type `{}` {} are not supported; leave it out", shown(kind), shown(scheme)));
        }
    };
    if let Some(name) = given.iter().find(|name| !of_form.contains(name)) {
        return Err(format!("`{name}` is not what this scheme needs; expected `{}`", of_form.join("` and `")));
    }
    if let Some(missing) = auth.missing().first() {
        return Err(format!("`{missing}` is missing; expected it here, or in `per_agent` for each agent"));
    }
    match auth.misfits().first() {
        Some(agent) => Err(format!("`per_agent.{agent}`: expected {}, as this scheme needs", auth.needed())),
        None => Ok(Carrier::Auth(auth)),
    }
}
