//! HTTP endpoints as tools.
//!
//! [`Settings`] describe one endpoint; [`tool`] checks them and makes a tool, which shares the [`HttpClient`] with all
//! others. [`tools`] does that for many, and reports every mistake.
//!
//! A call goes this way: the arguments fill the URL's placeholders in one pass, those left over become the body or
//! more of the query, the response is read up to its limit, and becomes a result, an error of the tool, or a
//! [failure](toolbus_core::failure::ToolFailure).

mod check;
mod credentials;
mod endpoint;
mod response;
mod settings;
mod template;
#[cfg(test)]
mod tests;

use toolbus_core::tool::Tool;
pub use toolbus_outbound::{Credential, CredentialError, HeaderError, HttpClient, HttpClientError};

pub use self::check::EndpointError;
pub use self::settings::{Body, Method, Settings, UnknownMethod};
pub use self::template::TemplateError;

/// Makes a tool of an endpoint, of source and provider `rest`.
///
/// # Errors
///
/// The first mistake in the settings.
pub fn tool(settings: Settings, client: &HttpClient) -> Result<Tool, EndpointError> {
    let (descriptor, endpoint) = check::endpoint(settings, client)?;
    Ok(Tool::new(descriptor, endpoint))
}

/// Makes a tool of every endpoint.
///
/// # Errors
///
/// The first mistake of every endpoint that has one, with the endpoint's position in `endpoints`.
pub fn tools(endpoints: Vec<Settings>, client: &HttpClient) -> Result<Vec<Tool>, Vec<(usize, EndpointError)>> {
    let (mut tools, mut mistakes) = (Vec::new(), Vec::new());
    for (position, settings) in endpoints.into_iter().enumerate() {
        match tool(settings, client) {
            Ok(tool) => tools.push(tool),
            Err(mistake) => mistakes.push((position, mistake)),
        }
    }
    if mistakes.is_empty() { Ok(tools) } else { Err(mistakes) }
}
