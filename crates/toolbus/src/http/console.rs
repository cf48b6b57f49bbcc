//! The console: pages on which operators see the work of agents, and act. The server writes whole pages, which need no
//! scripts to be read; one script adds liveness and keys.

use std::sync::Arc;

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use tokio::sync::watch;
use toolbus_core::redact::Redactor;

use super::HttpAuth;
use super::admin::view::ApiError;
use super::admin::{Actor, Admin, OperatorCalls, OperatorTokens};
use crate::config::{Config, HttpConfig, Sources};

mod access;
mod agents;
mod calls;
mod charts;
mod configuration;
mod dead_letters;
mod form;
mod history;
mod login;
mod memory;
mod overview;
mod page;
mod paging;
mod pins;
mod schedules;
mod servers;
mod switches;
mod tasks;
mod tools;
mod trial;

use access::Access;
pub use history::LastHour;
use page::PageWriter;

/// Where the console is.
pub(super) const PATH: &str = "/console";

/// Content security policy: pages load and send their own script, style, images and forms alone.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";
const HEADERS: [(&str, &str); 5] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    // With "no-referrer", browsers send forms of these pages without their origin, which actions need.
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

const STYLE: &str = include_str!("../../assets/console.css");
const SCRIPT: &str = include_str!("../../assets/console.js");

/// The parts that pages are made from.
pub struct Console {
    /// State that operators can read and change.
    pub admin: Arc<Admin>,
    /// Makes calls as agents.
    pub calls: OperatorCalls,
    /// Removes secrets from pages.
    pub redactor: Redactor,
    /// The calls of the last hour.
    pub history: Arc<LastHour>,
    /// Name of the daemon.
    pub name: String,
    /// Address of a trace with `{trace_id}` in it.
    pub trace_url: Option<String>,
    /// Whether arguments and results of recent calls are kept.
    pub keeps_payloads: bool,
    /// The configuration that is in force.
    pub config: watch::Receiver<Arc<Config>>,
    /// Where it comes from.
    pub sources: Sources,
}

/// A page, or why there is none.
type PageResult = Result<Response, ApiError>;
/// The operator on a page, for the audit.
type ByOperator = Extension<Actor>;

/// The routes below `/console`.
pub fn router(console: Console, config: &HttpConfig, auth: &HttpAuth) -> Router {
    let access = Arc::new(Access::new(OperatorTokens::new(config, auth)));
    let console = Arc::new(console);
    let inside = Router::new()
        .route("/", get(overview::page))
        .route("/calls", get(calls::list))
        .route("/calls/{id}", get(calls::one))
        .route("/calls/{id}/cancel", post(calls::cancel))
        .route("/servers", get(servers::list))
        .route("/servers/{name}", get(servers::one))
        .route("/servers/{name}/restart", post(servers::restart))
        .route("/servers/{name}/reset", post(servers::reset))
        .route("/servers/{name}/switch", post(servers::switch))
        .route("/tools", get(tools::list))
        .route("/tools/{name}", get(tools::one))
        .route("/tools/{name}/call", get(trial::back).post(trial::call))
        .route("/tools/{name}/switch", post(tools::switch))
        .route("/agents", get(agents::list))
        .route("/agents/{name}", get(agents::one))
        .route("/agents/{name}/compare", get(agents::compare))
        .route("/agents/{name}/explain", get(agents::explain))
        .route("/agents/{name}/switch", post(agents::switch))
        .route("/schedules", get(schedules::list))
        .route("/schedules/cancel", post(schedules::cancel))
        .route("/tasks", get(tasks::list))
        .route("/memory", get(memory::list))
        .route("/memory/{owner}", get(memory::one))
        .route("/dead-letters", get(dead_letters::list))
        .route("/dead-letters/replay", post(dead_letters::replay))
        .route("/dead-letters/drop", post(dead_letters::drop))
        .route("/pins", get(pins::list))
        .route("/pins/{name}", get(pins::one))
        .route("/pins/{name}/approve", post(pins::approve))
        .route("/switches", get(switches::page).post(switches::switch))
        .route("/switches/reset", post(switches::reset))
        .route("/configuration", get(configuration::page))
        .route("/configuration/check", get(configuration::check))
        .route("/configuration/reload", post(configuration::reload))
        .fallback(missing)
        .with_state(Arc::clone(&console))
        .layer(from_fn_with_state(Arc::clone(&access), access::enter));
    Router::new()
        .route("/console.css", get(async || asset("text/css; charset=utf-8", STYLE)))
        .route("/console.js", get(async || asset("text/javascript; charset=utf-8", SCRIPT)))
        .route("/login", get(login::login_page).post(login::login))
        .route("/logout", post(login::logout))
        .with_state((access, console))
        .merge(inside)
        .layer(map_response(secured))
}

async fn missing(pages: PageWriter) -> Response {
    pages.refusal(StatusCode::NOT_FOUND, "There is no such page.")
}

fn asset(media_type: &'static str, text: &'static str) -> Response {
    ([(CONTENT_TYPE, media_type)], text).into_response()
}

async fn secured(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
