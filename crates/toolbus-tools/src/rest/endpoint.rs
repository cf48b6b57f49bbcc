use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Request, StatusCode};
use serde_json::Value;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::{Executor, ToolCall, ToolOutput};
use toolbus_outbound::HttpReply;
use toolbus_protocol::{Random, TraceContext};

use super::credentials::{EndpointCredentials, RequestCredentials};
use super::response::ResponseLimit;
use super::routes::{ArgumentRoutes, RoutedArguments};
use super::template::UrlTemplate;
use super::{Body, Method, RestClient, response};

/// An endpoint whose settings have been checked.
pub(super) struct EndpointExecutor {
    pub(super) name: Arc<str>,
    pub(super) client: RestClient,
    pub(super) method: Method,
    pub(super) template: UrlTemplate,
    pub(super) credentials: EndpointCredentials,
    pub(super) body: Body,
    /// Routes of arguments, if a specification defines them.
    pub(super) routes: Option<ArgumentRoutes>,
    /// Whether a specification chose the host.
    pub(super) is_guarded: bool,
    pub(super) idempotency_header: Option<HeaderName>,
    pub(super) timeout: Duration,
    /// Bytes.
    pub(super) max_response: usize,
    /// Whether a result that is kept in parts may have more.
    pub(super) grows: bool,
}

impl Executor for EndpointExecutor {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let credentials = self.credentials.of(&self.name, &call.caller)?;
        let limit = call.remaining().min(self.timeout);
        tokio::time::timeout(limit, self.exchange(credentials, &call))
            .await
            .unwrap_or_else(|_| Err(call.timed_out(Some(self.timeout))))
    }
}

impl EndpointExecutor {
    /// Sends the request and reads its response. A token that the endpoint does not accept is fetched anew, once.
    async fn exchange(&self, credentials: &RequestCredentials, call: &ToolCall) -> Result<ToolOutput, ToolFailure> {
        let mut carried = credentials.carry(&self.name).await?;
        let mut reply = self.send(call, &carried.headers).await?;
        if matches!(&reply, HttpReply::Response(response) if response.status() == StatusCode::UNAUTHORIZED)
            && credentials.forget(&carried).await
        {
            carried = credentials.carry(&self.name).await?;
            reply = self.send(call, &carried.headers).await?;
        }
        match reply {
            HttpReply::Response(response) => {
                let room = call.room.as_ref().filter(|_| self.grows);
                let limit = ResponseLimit { bytes: self.max_response, room };
                response::read(&self.name, response, limit, &carried.mask, call).await
            }
            HttpReply::Redirect(status, error) => {
                let text = format!("HTTP {status}: the redirect was not followed, because {error}");
                Ok(ToolOutput::error(carried.mask.whole(&text)))
            }
        }
    }

    async fn send(&self, call: &ToolCall, headers: &HeaderMap) -> Result<HttpReply, ToolFailure> {
        let request = self.request(call, headers)?;
        self.client.send(request, &self.name, self.is_guarded, &call.caller).await
    }

    fn request(&self, call: &ToolCall, headers: &HeaderMap) -> Result<Request, ToolFailure> {
        let (url, of_arguments, body) = match &self.routes {
            Some(routes) => {
                let RoutedArguments { path, query, headers, body } = routes.split(&call.arguments)?;
                (self.template.fill(&path, query.iter().map(|(name, value)| (name, value))), headers, body)
            }
            None => {
                let used: Vec<&str> = self.template.placeholders().collect();
                let left = call.arguments.iter().filter(|(name, _)| !used.contains(&name.as_str()));
                let (query, body): (Vec<_>, Vec<_>) = left.partition(|_| self.body == Body::None);
                let body = body.into_iter().map(|(name, value)| (name.clone(), value.clone()));
                let body = (self.body == Body::Json).then(|| Value::Object(body.collect()));
                (self.template.fill(&call.arguments, query), Vec::new(), body)
            }
        };
        let url = url.map_err(|error| ToolFailure::invalid(error.to_string()))?;

        let mut request = Request::new(self.method.into(), url);
        request.headers_mut().extend(of_arguments);
        // A request without an idempotency key gets a random one, where the endpoint requires a key.
        let needs_key = self.routes.as_ref().is_some_and(|routes| routes.needs_key);
        let random = || format!("{:032x}{:032x}", Random::SYSTEM.bits(), Random::SYSTEM.bits()).into();
        let key = call.idempotency_key.clone().or_else(|| needs_key.then(random));
        if let (Some(name), Some(key)) = (&self.idempotency_header, key) {
            let key = HeaderValue::from_str(&key).map_err(|error| {
                ToolFailure::new(Cause::Failed, "the idempotency key could not be written").with_detail(error)
            })?;
            request.headers_mut().insert(name, key);
        }
        // Those of the configuration stand above the key, and above what callers give.
        request.headers_mut().extend(headers.clone());
        if let Some(trace) = &call.trace {
            carry(trace, request.headers_mut());
        }
        if let Some(body) = body {
            request.headers_mut().entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
            let body = serde_json::to_vec(&body)
                .map_err(|error| ToolFailure::new(Cause::Failed, "the body could not be written").with_detail(error))?;
            *request.body_mut() = Some(body.into());
        }
        Ok(request)
    }
}

/// Passes the trace on, so that the server's spans join it.
fn carry(trace: &TraceContext, headers: &mut HeaderMap) {
    let fields = [("traceparent", Some(trace.traceparent())), ("tracestate", trace.tracestate())];
    for (name, value) in fields {
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
            headers.insert(name, value);
        }
    }
}
