//! HTTP endpoints as tools.
//!
//! An [`Endpoint`] is one section of the configuration; [`tool`] checks it and makes a tool, which shares the
//! [`RestClient`] with all others.
//!
//! Endpoints also come from specifications ([`openapi`]) and from the file that the agents of RockBot have
//! ([`endpoints_of_seeds`]).
//!
//! A call goes this way: the arguments fill the URL's placeholders in one pass, those left over become the body or
//! more of the query, the response is read up to its limit, and becomes a result, an error of the tool, or a
//! [failure](toolbus_core::failure::ToolFailure).

mod check;
mod client;
mod config;
mod credentials;
mod endpoint;
pub mod openapi;
mod response;
mod routes;
mod seeds;
mod template;
#[cfg(test)]
mod tests;

use toolbus_core::tool::Tool;
pub use toolbus_outbound::{AgentCredential, Auth, Credential, CredentialError, HeaderError};

pub use self::client::{RestClient, RestClientError};
pub use self::config::{
    Body, DescribedEndpoints, Endpoint, EndpointError, Method, OpenApiConfig, RestConfig, SchemeCredential,
    UnknownMethod,
};
pub use self::seeds::endpoints_of_seeds;
pub use self::template::UrlTemplateError;

/// Guide to the use of the REST tools, for models.
pub const GUIDE: &str = include_str!("rest/guide.md");

/// Makes a tool of an endpoint, of source and provider `rest`.
///
/// # Errors
///
/// The first mistake in the section.
pub fn tool(endpoint: &Endpoint, client: &RestClient) -> Result<Tool, EndpointError> {
    let (descriptor, executor) = check::endpoint(endpoint, client)?;
    Ok(Tool::new(descriptor, executor))
}
