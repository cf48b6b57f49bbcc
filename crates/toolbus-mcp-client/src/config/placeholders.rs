//! `{agent}` and `{session}`: what stands for the caller in the server of a session.

use std::borrow::Cow;

use crate::spec::{ServerSpec, TransportSpec};

const AGENT: &str = "{agent}";
const SESSION: &str = "{session}";

/// The texts of one key of a program.
type Texts<'a> = (&'static str, Vec<Cow<'a, str>>);

/// The key of a program that has a placeholder for the caller, if any has.
#[must_use]
pub fn placeholder(spec: &ServerSpec) -> Option<&'static str> {
    let has = |text: &Cow<'_, str>| text.contains(AGENT) || text.contains(SESSION);
    texts(spec).into_iter().find(|(_, texts)| texts.iter().any(has)).map(|(key, _)| key)
}

/// Message on a placeholder in a server that all callers share.
#[must_use]
pub fn misplaced(key: &str) -> String {
    format!(
        "`{key}` has `{{agent}}` or `{{session}}`, which have a value only in the server of a tool set of scope \"session\""
    )
}

/// A warning about a path with `{session}` and no `{agent}`, which agents share whose sessions have one name.
pub(super) fn shared_path(spec: &ServerSpec) -> Option<String> {
    let is_shared = |text: &str| text.contains(SESSION) && !text.contains(AGENT);
    let is_path = |key, text: &str| matches!(key, "cwd" | "roots") || text.contains('/');
    let key = texts(spec)
        .into_iter()
        .find(|(key, texts)| texts.iter().any(|text| is_shared(text) && is_path(*key, text)))
        .map(|(key, _)| key)?;
    Some(format!(
        "`{key}` has a path with `{{session}}` and no `{{agent}}`: agents share it whose sessions have one name"
    ))
}

/// Every text that may have a placeholder, by key.
fn texts(spec: &ServerSpec) -> Vec<Texts<'_>> {
    let TransportSpec::Stdio(program) = &spec.transport else { return Vec::new() };
    vec![
        ("args", program.args.iter().map(Cow::from).collect()),
        ("env", program.env.values().map(|value| Cow::from(value.expose())).collect()),
        ("cwd", program.cwd.iter().map(|cwd| cwd.to_string_lossy()).collect()),
        ("roots", program.roots.iter().map(|root| root.to_string_lossy()).collect()),
    ]
}
