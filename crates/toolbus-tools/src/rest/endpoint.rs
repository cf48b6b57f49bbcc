use std::sync::Arc;
use std::time::Duration;

use reqwest::Request;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::results::ResultRoom;
use toolbus_core::tool::{Executor, ToolCall, ToolOutput};
use toolbus_outbound::HttpReply;
use toolbus_protocol::TraceContext;

use super::credentials::{EndpointCredentials, ResponseMask};
use super::response::ResponseLimit;
use super::template::UrlTemplate;
use super::{Body, HttpClient, Method, response};
use crate::arguments::invalid;

/// An endpoint whose settings have been checked.
pub(super) struct EndpointExecutor {
    pub(super) name: Arc<str>,
    pub(super) client: HttpClient,
    pub(super) method: Method,
    pub(super) template: UrlTemplate,
    pub(super) credentials: EndpointCredentials,
    pub(super) body: Body,
    pub(super) idempotency_header: Option<HeaderName>,
    pub(super) timeout: Duration,
    /// Bytes.
    pub(super) max_response: usize,
    /// Whether a result that is kept in parts may have more.
    pub(super) grows: bool,
}

impl Executor for EndpointExecutor {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let carried = self.credentials.of(&self.name, &call.caller)?;
        let request = self.request(&call, &carried.headers)?;
        let limit = call.remaining().min(self.timeout);
        tokio::time::timeout(limit, self.exchange(request, &carried.mask, call.room.as_ref().filter(|_| self.grows)))
            .await
            .unwrap_or_else(|_| Err(call.timed_out(Some(self.timeout))))
    }
}

impl EndpointExecutor {
    async fn exchange(
        &self,
        request: Request,
        mask: &ResponseMask,
        room: Option<&ResultRoom>,
    ) -> Result<ToolOutput, ToolFailure> {
        let reply = self.client.send(request).await.map_err(|error| response::while_sending(&self.name, error))?;
        match reply {
            HttpReply::Response(response) => {
                let limit = ResponseLimit { bytes: self.max_response, room };
                response::read(&self.name, response, limit, mask).await
            }
            HttpReply::Redirect(status, error) => {
                let text = format!("HTTP {status}: the redirect was not followed, because {error}");
                Ok(ToolOutput::error(mask.whole(&text)))
            }
        }
    }

    fn request(&self, call: &ToolCall, headers: &HeaderMap) -> Result<Request, ToolFailure> {
        let used: Vec<&str> = self.template.placeholders().collect();
        let left = call.arguments.iter().filter(|(name, _)| !used.contains(&name.as_str()));
        let (query, body): (Vec<_>, Vec<_>) = left.partition(|_| self.body == Body::None);
        let url = self.template.fill(&call.arguments, query).map_err(|error| invalid(error.to_string()))?;

        let mut request = Request::new(self.method.into(), url);
        *request.headers_mut() = headers.clone();
        if let Some(trace) = &call.trace {
            carry(trace, request.headers_mut());
        }
        if let (Some(name), Some(key)) = (&self.idempotency_header, &call.idempotency_key) {
            let key = HeaderValue::from_str(key).map_err(|error| {
                ToolFailure::new(Cause::Failed, "the idempotency key could not be written").with_detail(error)
            })?;
            request.headers_mut().entry(name).or_insert(key);
        }
        if self.body == Body::Json {
            let body: Map<String, Value> =
                body.into_iter().map(|(name, value)| (name.clone(), value.clone())).collect();
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
