//! Checks that the tokens of the MCP server distinguish agents, and that no client is admitted by mistake.

use std::collections::BTreeMap;

use axum::http::HeaderValue;
use toolbus_config::{Part, Secret};
use url::Url;

use super::{RuleChecker, below, path};
use crate::config::http::{AgentTokens, HttpConfig, Open};
use crate::config::identity::IdentityConfig;
use crate::config::invoke::InvokeConfig;
use toolbus_core::caller::AgentName;

impl RuleChecker<'_> {
    pub(super) fn http(&mut self, http: &HttpConfig, identity: Option<&IdentityConfig>, invoke: Option<&InvokeConfig>) {
        for (key, token) in [("http.admin_token", &http.admin_token), ("http.read_token", &http.read_token)] {
            self.secret(key, token.clone());
            if token.as_ref().is_some_and(|token| !can_be_sent(token)) {
                self.report(&[key], NOT_SENT);
            }
        }
        if http.read_token.is_some() && http.read_token == http.admin_token {
            let what = "the same as `http.admin_token`, which lets act; expected another token";
            self.report(&["http.read_token", "http.admin_token"], what);
        }
        if http.console == Some(true) && !http.takes_operators() {
            let what =
                "the console opens with a token alone; expected one in `http.admin_token` or `http.read_token`, too";
            self.report(&["http.console"], what);
        }
        if http.trace_url.as_deref().is_some_and(|url| !is_trace_url(url)) {
            let what = "expected an http:// or https:// address with `{trace_id}` in it";
            self.report(&["http.trace_url"], what);
        }
        self.tokens(http);
        if let Some(own) = identity.and_then(|identity| identity.agent.as_ref()) {
            for agent in http.tokens.keys().filter(|agent| *agent != own) {
                let what = format!("this daemon is the sidecar of `{own}` alone; expected a token of that agent");
                self.report_at(vec![token_of(agent), path("identity.agent")], Part::Key, what);
            }
        }
        if http.open == Open::Local && !http.listen.ip().is_loopback() {
            let what = format!(
                "lets in clients without a token, and {} can be reached from other machines; expected tokens in \
                 `http.tokens`, an address of this machine in `http.listen`, or \"network\" if everybody who reaches \
                 the port may use the tools",
                http.listen
            );
            self.report(&["http.open", "http.listen"], what);
        }
        if let (Some(max_body), Some(invoke)) = (http.max_body, invoke)
            && max_body < invoke.max_body
        {
            let what = format!(
                "{max_body} is less than `invoke.max_body` ({}); expected at least as much, so that every call fits",
                invoke.max_body
            );
            self.report(&["http.max_body", "invoke.max_body"], what);
        }
    }

    /// Reports tokens that are given twice, or that no client can send. The token itself is never shown.
    fn tokens(&mut self, http: &HttpConfig) {
        let mut seen: BTreeMap<&str, &AgentName> = BTreeMap::new();
        for (agent, tokens) in &http.tokens {
            for (index, token) in tokens.all().iter().enumerate() {
                let key = match tokens {
                    AgentTokens::One(_) => token_of(agent),
                    AgentTokens::Several(_) => below(&token_of(agent), &[&index.to_string()]),
                };
                if !can_be_sent(token) {
                    self.report_at(vec![key.clone()], Part::Value, NOT_SENT);
                }
                for (own, operators) in [("http.admin_token", &http.admin_token), ("http.read_token", &http.read_token)]
                {
                    if operators.as_ref() == Some(token) {
                        let what = format!("the same as `{own}`, which is for operators; expected another token");
                        self.report_at(vec![key.clone(), path(own)], Part::Value, what);
                    }
                }
                if let Some(other) = seen.insert(token.expose(), agent) {
                    let what = format!("the same token as for `{other}`; expected one that no other has");
                    self.report_at(vec![key], Part::Value, what);
                }
            }
        }
    }
}

/// Problem of a token that no client can send.
const NOT_SENT: &str = "a token that no client can send; expected one without spaces at its ends and without line ends";

/// Whether a header can have the token. Servers ignore the space around it.
fn can_be_sent(token: &Secret) -> bool {
    let token = token.expose();
    token.trim_ascii() == token && HeaderValue::from_bytes(token.as_bytes()).is_ok()
}

fn is_trace_url(text: &str) -> bool {
    let is_web = Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
    is_web && text.contains("{trace_id}")
}

fn token_of(agent: &AgentName) -> Vec<String> {
    below(&path("http.tokens"), &[agent.as_str()])
}
