//! Calls of a tool as an agent, and their results.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use maud::{Markup, html};
use serde_json::Value;
use toolbus_core::Clock;
use toolbus_protocol::{ContentBlock, Outcome, ToolError, ToolInvokeResponse};

use super::access::Fields;
use super::page::{PageWriter, Status, duration, explain_path, given, see, size, tool_path, url_encoded};
use super::tools::shown;
use super::{ByOperator, PATH, form};
use crate::http::admin::DEFAULT_SECTION;
use crate::http::admin::view::{CallOutcome, CallRequest};
use crate::http::slots::ConnectionState;

/// Most bytes of a result that are shown.
const MAX_SHOWN: usize = 256 * 1024;
/// Types of images that are shown: those in which browsers run nothing.
const IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// Redirects a browser that opens the address of a call to its tool.
pub(super) async fn back(Path(name): Path<String>) -> Response {
    see(&tool_path(&name))
}

pub(super) async fn call(
    pages: PageWriter,
    Extension(operator): ByOperator,
    Extension(fields): Extension<Fields>,
    connection: Option<Extension<Arc<ConnectionState>>>,
    Path(name): Path<String>,
) -> Response {
    let tool = match pages.admin().tool(&name) {
        Ok(tool) => tool,
        Err(error) => return pages.refused(&error),
    };
    let page = |code: StatusCode, result: Markup| {
        let main = html! { (result) (shown(&pages, &tool, &fields)) };
        (code, pages.page("/tools", &name, false, &main)).into_response()
    };
    let problem = |text: &str| {
        html! { p.problem role="alert" { (Status::Failed.mark()) " Nothing was called. " (pages.text(text)) } }
    };
    let arguments = match form::arguments(&tool, &fields) {
        Ok(arguments) => arguments,
        Err(text) => return page(StatusCode::BAD_REQUEST, problem(&text)),
    };
    let given = |field: &str| given(fields.get(field));
    let request = CallRequest {
        agent: given("agent").filter(|agent| agent != DEFAULT_SECTION),
        tool: name.clone(),
        arguments: Some(arguments),
        binding: given("binding"),
        profile: given("profile"),
        session: given("session"),
        ..CallRequest::default()
    };
    let agent = request.agent.clone();
    tracing::info!(agent, tool = name, "console: an operator makes a call");
    let began = Clock::SYSTEM.now();
    let connection = connection.as_ref().map(|Extension(connection)| &**connection);
    match pages.admin().by(operator).call(&pages.console.calls, request, connection).await {
        Ok(outcome) => {
            let role = ["binding", "profile", "session"].map(|field| (field, fields.get(field)));
            // Without the arguments: addresses are kept in histories and by proxies.
            let explain = explain_path(agent.as_deref().unwrap_or(DEFAULT_SECTION), &name, &role);
            page(StatusCode::OK, result(&pages, &outcome, Clock::SYSTEM.since(began), &explain))
        }
        Err(error) => page(error.code(), problem(&error.to_string())),
    }
}

fn result(pages: &PageWriter, outcome: &CallOutcome, took: Duration, explain: &str) -> Markup {
    let after = format!(" after {}", duration(took.as_secs_f64() * 1_000.0));
    let (mark, word, id) = match outcome {
        CallOutcome::Result(result) if result.is_error => (Status::Failed, "error of the tool", &result.tool_call_id),
        CallOutcome::Result(result) => (Status::Ok, "ok", &result.tool_call_id),
        CallOutcome::Error(error) => (Status::Failed, error.code.as_str(), &error.tool_call_id),
    };
    html! {
        section.result aria-labelledby="result" {
            h2 #result { "Result" }
            p {
                (mark.mark()) " " (word) (after) ". "
                a href=(format!("{PATH}/calls/{}", url_encoded(id))) { "The call" } " "
                a href=(explain) { "Explain" } " "
                a href="#call" { "Call again" }
            }
            @match outcome {
                CallOutcome::Result(result) => { (content(pages, result)) }
                CallOutcome::Error(error) => { (failure(pages, error)) }
            }
        }
    }
}

fn failure(pages: &PageWriter, error: &ToolError) -> Markup {
    let effect = match error.outcome {
        Some(Outcome::NotStarted) => "The tool did not begin.",
        Some(Outcome::Failed) => "The tool ran and failed.",
        Some(Outcome::Unknown) => "The tool may have had its effect.",
        None => "",
    };
    let retry = match (error.is_retryable, error.retry_after_ms) {
        (false, _) => "The same call fails again.".to_owned(),
        (true, None) => "The same call may succeed later.".to_owned(),
        (true, Some(ms)) => format!("The same call may succeed after {}.", duration(ms as f64)),
    };
    html! { (pages.beginning(&error.message, MAX_SHOWN)) p { (effect) " " (retry) } }
}

/// The text and the other blocks of a result, up to [`MAX_SHOWN`] bytes.
fn content(pages: &PageWriter, result: &ToolInvokeResponse) -> Markup {
    let mut left = MAX_SHOWN;
    let mut take = |bytes: usize| {
        let most = left;
        left = left.saturating_sub(bytes);
        most
    };
    let content = result.content.as_deref();
    let blocks = result.content_blocks.as_deref().unwrap_or_default();
    html! {
        @if let Some(content) = content { (text(pages, content, take(content.len()))) }
        @for block in blocks {
            @match block {
                ContentBlock { kind, text: Some(own), .. } if kind == "text" => {
                    // The text of the result is that of all such blocks.
                    @if content.is_none() { (text(pages, own, take(own.len()))) }
                }
                block => { (other(pages, block, &mut take)) }
            }
        }
        @if content.is_none_or(str::is_empty) && blocks.is_empty() { p.empty { "The result is empty." } }
    }
}

/// A text, or the JSON that it is.
fn text(pages: &PageWriter, text: &str, most: usize) -> Markup {
    let json = Some(text).filter(|text| text.len() <= most && text.trim_start().starts_with(['{', '[']));
    match json.and_then(|text| serde_json::from_str::<Value>(text).ok()) {
        Some(value) => html! { details open { summary { "JSON" } (pages.beginning(&format!("{value:#}"), most)) } },
        None => pages.beginning(text, most),
    }
}

/// An image, or type and size of another block.
fn other(pages: &PageWriter, block: &ContentBlock, take: &mut impl FnMut(usize) -> usize) -> Markup {
    let data = block.data.as_deref().unwrap_or_default();
    let media_type = block.mime_type.as_deref().unwrap_or_default();
    let is_base64 = data.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
    let is_image = block.kind == "image" && IMAGES.contains(&media_type) && is_base64;
    let bytes = if data.is_empty() { block.text.as_ref().map_or(0, String::len) } else { data.len() / 4 * 3 };
    html! {
        @if is_image && take(data.len()) >= data.len() {
            p { img alt="An image of the result" src=(format!("data:{media_type};base64,{data}")); }
        } @else {
            p {
                (pages.text(&block.kind)) " " (pages.text(media_type)) " "
                @if let Some(uri) = &block.uri { code { (pages.text(uri)) } " " }
                span.dim { (size(bytes)) }
            }
        }
    }
}
