//! HTTP endpoints as tools.
//!
//! An [`Endpoint`] is one section of the configuration; [`tool`] checks it and makes a tool, which shares the
//! [`HttpClient`] with all others.
//!
//! A call goes this way: the arguments fill the URL's placeholders in one pass, those left over become the body or
//! more of the query, the response is read up to its limit, and becomes a result, an error of the tool, or a
//! [failure](toolbus_core::failure::ToolFailure).

mod auth;
mod check;
mod config;
mod credentials;
mod endpoint;
mod response;
mod template;
#[cfg(test)]
mod tests;

use toolbus_core::tool::Tool;
pub use toolbus_outbound::{Credential, CredentialError, HeaderError, HttpClient, HttpClientError};

pub use self::auth::{Auth, EndpointAgentCredential};
pub use self::config::{Body, Endpoint, EndpointError, Method, RestConfig, UnknownMethod};
pub use self::template::UrlTemplateError;

/// How its tools are used, for models.
pub const GUIDE: &str = include_str!("rest/guide.md");

/// Makes a tool of an endpoint, of source and provider `rest`.
///
/// # Errors
///
/// The first mistake in the section.
pub fn tool(endpoint: &Endpoint, client: &HttpClient) -> Result<Tool, EndpointError> {
    let (descriptor, executor) = check::endpoint(endpoint, client)?;
    Ok(Tool::new(descriptor, executor))
}
