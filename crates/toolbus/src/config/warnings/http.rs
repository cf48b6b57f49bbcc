//! A door that is open wider than it is hardly meant to be.

use crate::config::Config;
use crate::config::http::Open;

/// Shortest token that is not told, in bytes.
const MIN_TOKEN: usize = 16;

/// What is allowed and yet hardly meant, in words.
pub(super) fn warnings(config: &Config) -> Vec<String> {
    let http = &config.http;
    let mut warnings = Vec::new();
    let is_remote = !http.listen.ip().is_loopback();
    if is_remote {
        warnings.push(format!("http.listen: {} can be reached from other machines", http.listen));
    }
    if is_remote && !http.tokens.is_empty() {
        warnings.push(format!(
            "http.tokens: tokens travel to {} unencrypted; let a proxy that speaks TLS listen there",
            http.listen
        ));
    }
    if http.open == Open::Network && is_remote && !config.denies_unknown() {
        warnings
            .push("http.open: everybody who reaches the port may use what a caller without a section may".to_owned());
    }
    if http.open != Open::No && config.denies_unknown() {
        warnings.push(
            "http.open: clients without a token have no tool, because callers without a section have none \
             (`identity.unknown`)"
                .to_owned(),
        );
    }
    for (agent, token) in http.each_token() {
        let bytes = token.reveal().len();
        if bytes < MIN_TOKEN {
            warnings.push(format!(
                "http.tokens.{agent}: {bytes} bytes long, which can be guessed; use at least {MIN_TOKEN} random ones"
            ));
        }
    }
    for agent in http.tokens.keys().filter(|agent| !config.agents.contains_key(*agent)) {
        let what = if config.denies_unknown() {
            "has no tool, because it has no section in `agents`"
        } else {
            "has no section in `agents`, so it may use what everybody may"
        };
        warnings.push(format!("http.tokens: `{agent}` {what}"));
    }
    warnings
}
