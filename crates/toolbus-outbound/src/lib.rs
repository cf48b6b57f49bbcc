//! HTTP requests to other servers.
//!
//! * [`HttpClient`] sends requests of tools, and follows redirects within one origin. [`http_client`] is the client
//!   beneath it, for protocols that handle redirects themselves.
//! * [`Auth`] is its configuration, [`Credential`] what a request carries to authenticate, [`Authorizer`] also fetches
//!   and keeps tokens; [`headers`] checks names and values of headers.
//! * [`read_up_to`] reads a body of limited size.
//! * [`egress`] is for hosts that callers, pages or specifications supply, of which many may not be reached.
//!
//! Any other request goes to the configured server and nowhere else: proxies of the environment are not used, and no
//! redirect leads to another origin.

mod auth;
mod authorizer;
mod body;
mod client;
mod credential;
pub mod egress;
pub mod headers;
mod local;
mod redirect;

pub use auth::{AgentCredential, Auth};
pub use authorizer::{Authorizer, TokenError};
pub use body::{read_growing, read_up_to};
pub use client::{HttpClient, HttpClientError, HttpReply, SendError, http_client};
pub use credential::{ClientCredentials, Credential, CredentialError};
pub use headers::HeaderError;
pub use local::is_local;
pub use redirect::RedirectError;
