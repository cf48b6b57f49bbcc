//! The servers as one caller sees them: by those of their tools that it may use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use toolbus_core::caller::Caller;
use toolbus_core::log::shown;
use toolbus_core::policy::{EffectiveTools, Granted, PolicyHandle};

use crate::servers::ServerControl;
use crate::spec::ServerName;

/// Most names that an answer lists.
const MAX_LISTED: usize = 20;

/// One server that a caller sees. A server of whose tools it may use none is none for it.
pub(crate) struct Server<'a> {
    /// Its name, as configured.
    pub(crate) name: &'a Arc<str>,
    /// Its tools, by the names that they have within the server.
    pub(crate) tools: BTreeMap<&'a str, Granted<'a>>,
}

/// Every server that the caller sees, by its name in lower case.
pub(crate) fn servers(effective: &EffectiveTools) -> BTreeMap<String, Server<'_>> {
    let mut servers = BTreeMap::new();
    for granted in effective.of_servers() {
        let descriptor = &granted.tool.descriptor;
        let Some(name) = &descriptor.server else { continue };
        let server = servers.entry(name.to_lowercase()).or_insert_with(|| Server { name, tools: BTreeMap::new() });
        server.tools.entry(descriptor.bare_name()).or_insert(granted);
    }
    servers
}

/// What the caller may use, when the tools of this server are known, if they become known until `latest`.
pub(crate) async fn awaited(
    access: &PolicyHandle,
    known: &dyn ServerControl,
    caller: &Caller,
    server: &str,
    latest: Instant,
) -> EffectiveTools {
    let effective = access.effective(caller);
    let Ok(server) = ServerName::parse(server) else { return effective };
    // Nobody has a server started of whose tools it could use none, or learns from the wait that there is such a server.
    if is_registered(access, &server) || !known.within_reach(&effective).contains(&server) {
        return effective;
    }
    known.wake(&server, latest).await;
    if !is_registered(access, &server) {
        return effective;
    }
    // The policy takes up new tools in its own time, which may be after this.
    let policy = access.clone();
    let _ = tokio::task::spawn_blocking(move || policy.refresh()).await;
    access.effective(caller)
}

fn is_registered(access: &PolicyHandle, server: &ServerName) -> bool {
    let is_its = |name: &Arc<str>| *name.to_lowercase() == **server.folded();
    let known = access.registry().snapshot();
    known.tools().chain(known.shadowed()).any(|tool| tool.descriptor.server.as_ref().is_some_and(is_its))
}

/// Some names, for an answer: bounded in number and length.
pub(super) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names = names.into_iter();
    let mut listed: Vec<String> = names.by_ref().take(MAX_LISTED).map(shown).collect();
    let more = names.count();
    if more > 0 {
        listed.push(format!("… and {more} more"));
    }
    format!("[{}]", listed.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_names_are_bounded() {
        assert_eq!(listed([]), "[]");
        assert_eq!(listed(["a", "b\u{7}"]), "[a, b\\u{7}]");
        let many = vec!["x"; MAX_LISTED + 3];
        assert!(listed(many).ends_with("x, x, … and 3 more]"));
    }
}
