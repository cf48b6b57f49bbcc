//! Parts that all pages share: the frame, links, and foreign texts, which are escaped, isolated and cut.

use std::sync::Arc;

use axum::Extension;
use axum::extract::FromRequestParts;
use axum::extract::rejection::ExtensionRejection;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{Html, IntoResponse as _, Redirect, Response};
use jiff::Timestamp;
use maud::{DOCTYPE, Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use toolbus_store::StoreUrl;

use super::access::{Fields, PROOF, Visitor};
use super::{Console, PATH};
use crate::http::admin::view::ApiError;
use crate::http::admin::{Actor, Admin, DEFAULT_SECTION};

/// Longest foreign text in a cell of a table, in characters; the rest is shown when it is pointed at.
const MAX_CELL: usize = 120;
/// Longest foreign text that is shown when it is pointed at, in characters.
const MAX_TITLE: usize = 1_000;
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Longest value in an address, in bytes.
const MAX_IN_ADDRESS: usize = 4 * 1024;
/// Most bytes of a JSON text that are shown.
const MAX_JSON: usize = 64 * 1024;
/// Most names that a field suggests.
const MAX_SUGGESTED: usize = 200;

/// The views, as path and title.
const VIEWS: [(&str, &str); 12] = [
    ("", "Overview"),
    ("/calls", "Calls"),
    ("/tools", "Tools"),
    ("/agents", "Agents"),
    ("/servers", "Servers"),
    ("/schedules", "Schedules"),
    ("/tasks", "Tasks"),
    ("/memory", "Memory"),
    ("/dead-letters", "Dead letters"),
    ("/pins", "Pins"),
    ("/switches", "Switches"),
    ("/configuration", "Configuration"),
];

/// A part of an address.
pub(super) fn url_encoded(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

/// State of an object, by shape and colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Ok,
    Slow,
    Failed,
    Off,
}

impl Status {
    /// The mark, with a word for screen readers.
    pub(super) fn mark(self) -> Markup {
        let (class, sign, word) = match self {
            Self::Ok => ("ok", "●", "ok"),
            Self::Slow => ("slow", "▲", "slow"),
            Self::Failed => ("failed", "■", "failed"),
            Self::Off => ("off", "○", "off"),
        };
        html! { span.mark.(class) role="img" aria-label=(word) { (sign) } }
    }
}

/// Writes the pages of one visitor.
pub(super) struct PageWriter {
    pub(super) console: Arc<Console>,
    pub(super) visitor: Arc<Visitor>,
}

impl FromRequestParts<Arc<Console>> for PageWriter {
    type Rejection = ExtensionRejection;

    async fn from_request_parts(parts: &mut Parts, console: &Arc<Console>) -> Result<Self, Self::Rejection> {
        let Extension(visitor) = Extension::from_request_parts(parts, console).await?;
        Ok(Self { console: Arc::clone(console), visitor })
    }
}

impl PageWriter {
    /// State that operators can read and change.
    pub(super) fn admin(&self) -> &Admin {
        &self.console.admin
    }

    /// A text without secrets, for attributes and fields.
    pub(super) fn clean(&self, text: &str) -> String {
        self.console.redactor.text(text).into_owned()
    }

    /// Whether the state of the daemon ends with it.
    pub(super) fn has_state_in_memory(&self) -> bool {
        self.store() == StoreUrl::Memory
    }

    /// Where the daemon keeps its state.
    pub(super) fn store(&self) -> StoreUrl {
        self.console.config.borrow().store.url()
    }

    /// A foreign text in one line.
    pub(super) fn text(&self, text: &str) -> Markup {
        let clean = self.console.redactor.text(text);
        let line: String = clean.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let (shown, rest) = cut(&line, MAX_CELL);
        match rest {
            false => html! { bdi { (shown) } },
            true => html! { bdi title=(cut(&line, MAX_TITLE).0) { (shown) "…" } },
        }
    }

    /// A foreign text with its lines, as a whole.
    pub(super) fn block(&self, text: &str) -> Markup {
        html! { pre dir="auto" tabindex="0" { (self.console.redactor.text(text)) } }
    }

    /// The first bytes of a foreign text with its lines, and its size.
    pub(super) fn beginning(&self, text: &str, most: usize) -> Markup {
        html! {
            pre dir="auto" tabindex="0" { (self.console.redactor.beginning(text, most)) }
            @if text.len() > most { p.hint { "The first " (size(most)) " of " (size(text.len())) "." } }
        }
    }

    /// A JSON value, folded.
    pub(super) fn json(&self, summary: &str, value: &Value) -> Markup {
        html! { details { summary { (summary) } (self.json_text(value)) } }
    }

    /// A JSON value in lines.
    pub(super) fn json_text(&self, value: &Value) -> Markup {
        self.beginning(&format!("{value:#}"), MAX_JSON)
    }

    /// The names of agents, for fields with `list="agents"`.
    pub(super) fn agent_names(&self) -> Markup {
        let names = self.admin().gates.policy().agents();
        html! {
            datalist #agents {
                option value=(DEFAULT_SECTION) { "callers without a section" }
                @for name in names.iter().take(MAX_SUGGESTED) { option value=(name.as_str()) {} }
            }
        }
    }

    /// The form that filters the page at `path` by an agent.
    pub(super) fn agent_filter(&self, path: &str, agent: &str) -> Markup {
        html! {
            form.filter role="search" aria-label="Filter" {
                label { "Agent " input name="agent" list="agents" value=(agent); }
                button { "Filter" }
                @if !agent.is_empty() { a href=(format!("{PATH}{path}")) { "Show all" } }
            }
            (self.agent_names())
        }
    }

    /// A link to an object, such as `("agents", "ana")`.
    pub(super) fn link(&self, view: &str, name: &str) -> Markup {
        html! { @if !name.is_empty() { a.name href=(format!("{PATH}/{view}/{}", url_encoded(name))) { (self.text(name)) } } }
    }

    /// A button that acts on the subject of the page.
    pub(super) fn action(&self, path: &str, label: &str, fields: &[(&str, &str)]) -> Markup {
        html! {
            @if self.visitor.may_act {
                form.action method="post" action=(format!("{PATH}{path}")) {
                    (self.proof())
                    @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
                    button { (label) }
                }
            }
        }
    }

    /// The field that every form needs which does something.
    pub(super) fn proof(&self) -> Markup {
        html! { input type="hidden" name=(PROOF) value=(self.visitor.proof); }
    }

    /// A whole page of the view at `path`, such as `/calls`. `is_live`: its parts are renewed while it is looked at.
    pub(super) fn page(&self, path: &str, title: &str, is_live: bool, main: &Markup) -> Response {
        let title = &*self.clean(title);
        let is_ready = self.admin().daemon.as_ref().is_some_and(|daemon| daemon.is_ready());
        let body = html! {
            a.skip href="#main" { "Skip to the content" }
            header {
                a.brand href=(PATH) { "Toolbus" }
                span #state data-part {
                    bdi { (self.console.name) } " · "
                    @if is_ready { (Status::Ok.mark()) " ready" } @else { (Status::Failed.mark()) " not ready" }
                }
                form.search action=(format!("{PATH}/calls")) role="search" {
                    label { span.hidden { "Find a call by an id" } input name="id" type="search" placeholder="call, message or trace id  /" accesskey="f"; }
                }
                span #live aria-live="polite" {}
                span.who { (if self.visitor.may_act { "may act" } else { "reads" }) }
                form.action method="post" action=(format!("{PATH}/logout")) { button { "Log out" } }
            }
            nav aria-label="Views" {
                @for (own, name) in VIEWS {
                    a href=(format!("{PATH}{own}")) aria-current=[(own == path).then_some("page")] { (name) }
                }
            }
            main #main tabindex="-1" data-live[is_live] {
                h1 { bdi { (title) } }
                (main)
            }
        };
        Html(frame(&format!("{title} – {}", self.console.name), &body).into_string()).into_response()
    }

    /// A page of a view that has nothing without a section of the configuration.
    pub(super) fn off(&self, path: &str, title: &str, what: &str, section: &str) -> Response {
        self.page(path, title, false, &is_off(what, section))
    }

    /// A page with the reason why there is nothing to see.
    pub(super) fn refusal(&self, code: StatusCode, text: &str) -> Response {
        let main = html! { p.empty { (self.text(text)) } p { a href=(PATH) { "Back to the overview" } } };
        (code, self.page("-", "Not here", false, &main)).into_response()
    }

    /// The response to an action: the page at `path`, which shows its result, or why it was refused.
    pub(super) fn acted<T>(&self, result: Result<T, ApiError>, path: &str) -> Response {
        match result {
            Ok(_) => see(path),
            Err(error) => {
                let back = html! { p.problem { (self.text(&error.to_string())) } p { a href=(format!("{PATH}{path}")) { "Back" } } };
                (error.code(), self.page("-", "Not done", false, &back)).into_response()
            }
        }
    }

    /// Switches something off or on, as the form requests, and shows the page at `path`.
    pub(super) async fn switch(
        &self,
        operator: Actor,
        (kind, name): (&str, &str),
        fields: &Fields,
        path: &str,
    ) -> Response {
        self.acted(self.admin().by(operator).switch(kind, name, fields.get("off") == "true").await, path)
    }

    /// A page with the refusal of the admin API.
    pub(super) fn refused(&self, error: &ApiError) -> Response {
        self.refusal(error.code(), &error.to_string())
    }
}

/// A note that a part of the daemon is off without a section of the configuration.
pub(super) fn is_off(what: &str, section: &str) -> Markup {
    html! {
        p.empty {
            (what) ": the configuration has no section " code { "[" (section) "]" } ", which turns this on with a restart."
        }
    }
}

/// A redirection to the page at `path`.
pub(super) fn see(path: &str) -> Response {
    Redirect::to(&format!("{PATH}{path}")).into_response()
}

/// A value of an address or a form without the spaces around it; `None` if it is empty.
pub(super) fn given(text: &str) -> Option<String> {
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The login.
pub(super) fn login(name: &str, next: &str, problem: Option<&str>) -> Html<String> {
    let body = html! {
        main #main.login {
            h1 { "Toolbus " bdi { (name) } }
            @if let Some(problem) = problem { p.problem role="alert" { (Status::Failed.mark()) " " (problem) } }
            form method="post" action=(format!("{PATH}/login")) {
                input type="hidden" name="next" value=(next);
                label { "Token" input name="token" type="password" required autofocus autocomplete="current-password"; }
                p.hint { "The value of http.admin_token lets look and act, that of http.read_token lets look." }
                button { "Log in" }
            }
        }
    };
    Html(frame("Log in – Toolbus", &body).into_string())
}

fn frame(title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                link rel="icon" href="data:,";
                link rel="stylesheet" href=(format!("{PATH}/console.css"));
                script type="module" blocking="render" src=(format!("{PATH}/console.js")) {}
            }
            body { (body) }
        }
    }
}

/// The path of a tool's page below the console's.
pub(super) fn tool_path(name: &str) -> String {
    format!("/tools/{}", url_encoded(name))
}

/// The path of an agent's page below the console's.
pub(super) fn agent_path(name: &str) -> String {
    format!("/agents/{}", url_encoded(name))
}

/// The address that explains a call of a tool, with further fields of the form, such as `("binding", "telegram:bot1")`.
/// A long value is left out.
pub(super) fn explain_path(agent: &str, tool: &str, fields: &[(&str, &str)]) -> String {
    let fields = fields.iter().copied().filter(|(_, value)| value.len() <= MAX_IN_ADDRESS);
    format!("{PATH}{}/explain{}", agent_path(agent), query([("tool", tool)].into_iter().chain(fields)))
}

/// The query of an address, with its question mark, without empty values.
pub(super) fn query<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let given = pairs.into_iter().filter(|(_, value)| !value.is_empty());
    let pairs: Vec<_> = given.map(|(name, value)| format!("{name}={}", url_encoded(value))).collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

/// A time in seconds since 1970.
pub(super) fn time(seconds: u64) -> Markup {
    let time = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    html! { @if let Some(time) = time { time datetime=(time) { (time) } } }
}

/// A number of bytes for people.
pub(super) fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// The first characters, and whether there are more.
fn cut(text: &str, most: usize) -> (&str, bool) {
    match text.char_indices().nth(most) {
        Some((end, _)) => (&text[..end], true),
        None => (text, false),
    }
}

/// Milliseconds for people: three significant digits and the unit.
pub(super) fn duration(ms: f64) -> String {
    match ms {
        _ if ms < 1.0 => format!("{:.0} µs", ms * 1_000.0),
        _ if ms < 10.0 => format!("{ms:.2} ms"),
        _ if ms < 100.0 => format!("{ms:.1} ms"),
        _ if ms < 1_000.0 => format!("{ms:.0} ms"),
        _ if ms < 60_000.0 => format!("{:.1} s", ms / 1_000.0),
        _ if ms < 7_200_000.0 => format!("{:.1} min", ms / 60_000.0),
        _ if ms < 172_800_000.0 => format!("{:.1} h", ms / 3_600_000.0),
        _ => format!("{:.1} days", ms / 86_400_000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_only_filters_that_are_given() {
        assert_eq!(query([("a", ""), ("b", "x&y")]), "?b=x%26y");
        assert_eq!(query([("a", "")]), "");
    }
}
