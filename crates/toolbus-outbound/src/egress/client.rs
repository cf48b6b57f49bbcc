//! Sends requests to hosts that the rules allow.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::HeaderMap;
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Request, Response};
use rustls::ClientConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls_platform_verifier::BuilderVerifierExt as _;
use url::Url;

use super::hosts::HostLists;
use super::rules::{EgressRules, EgressTarget, ProxyMode, Refusal};
use crate::client::HttpClientError;
use crate::redirect;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Protocols that are offered to a server.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The addresses of a name, or why there are none.
type Addresses = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// Looks the addresses of a name up; the default queries the system.
pub type HostLookup = Arc<dyn Fn(String) -> Addresses + Send + Sync>;

/// Sends requests to hosts that the rules allow. Clones share rules and settings.
///
/// Each request has a connection of its own: a connection that one agent may use is not handed to another. There are no
/// cookies, no credentials but those among the headers of a request, and no redirect is followed: see [`next_hop`].
#[derive(Clone)]
pub struct Egress {
    rules: Arc<EgressRules>,
    tls: ClientConfig,
    user_agent: Arc<str>,
    lookup: HostLookup,
}

impl fmt::Debug for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Egress").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// Reason why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// The rules refuse it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The target of a redirect cannot be read.
    #[error("the redirect leads to no usable address")]
    Redirect,
    /// There is no client.
    #[error(transparent)]
    Client(#[from] HttpClientError),
    /// The name has no address.
    #[error("the host name is not known")]
    UnknownHost,
    /// The request failed.
    #[error("the request failed")]
    Failed(#[source] reqwest::Error),
}

impl Egress {
    /// Sets TLS up.
    ///
    /// # Errors
    ///
    /// If the system's trusted certificates cannot be read.
    pub fn new(rules: EgressRules, user_agent: &str) -> Result<Self, rustls::Error> {
        let provider =
            CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(aws_lc_rs::default_provider()));
        let mut tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_platform_verifier()?
            .with_no_client_auth();
        tls.alpn_protocols = ALPN.map(<[u8]>::to_vec).into();
        let lookup: HostLookup = Arc::new(|host| Box::pin(system_lookup(host)));
        Ok(Self { rules: Arc::new(rules), tls, user_agent: user_agent.into(), lookup })
    }

    /// The same with another way to look names up.
    #[must_use]
    pub fn with_lookup(self, lookup: HostLookup) -> Self {
        Self { lookup, ..self }
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> &EgressRules {
        &self.rules
    }

    /// Requests a page, whose host the rules must allow for an agent with these lists.
    ///
    /// # Errors
    ///
    /// If the rules refuse the URL or each of its addresses, or there is no response.
    pub async fn get(&self, url: &Url, headers: HeaderMap, lists: &HostLists) -> Result<Response, EgressError> {
        let mut request = Request::new(Method::GET, url.clone());
        *request.headers_mut() = headers;
        self.send(request, lists).await
    }

    /// Sends a request of any method, like [`Self::get`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::get`].
    pub async fn send(&self, request: Request, lists: &HostLists) -> Result<Response, EgressError> {
        let target = self.rules.check_url(request.url(), lists)?;
        let guard = GuardedLookup {
            rules: Arc::clone(&self.rules),
            lists: lists.clone(),
            target,
            lookup: Arc::clone(&self.lookup),
        };
        let builder = Client::builder()
            .user_agent(&*self.user_agent)
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_max_idle_per_host(0)
            .tls_backend_preconfigured(self.tls.clone())
            .dns_resolver(guard);
        let builder = match self.rules.proxy() {
            ProxyMode::None => builder.no_proxy(),
            ProxyMode::Environment => builder,
        };
        let client = builder.build().map_err(HttpClientError::from)?;
        client.execute(request).await.map_err(judge)
    }
}

/// The URL that a redirect leads to; `None` for any other response.
///
/// # Errors
///
/// If it cannot be read.
pub fn next_hop(response: &Response) -> Option<Result<Url, EgressError>> {
    let location = redirect::location(response)?;
    let target = location.to_str().ok().and_then(|location| response.url().join(location).ok());
    Some(target.ok_or(EgressError::Redirect))
}

/// Finds the refusal of the lookup below the client.
fn judge(error: reqwest::Error) -> EgressError {
    let sources = std::iter::successors(error.source(), |&error| error.source());
    match sources.filter_map(|source| source.downcast_ref::<Refusal>()).next() {
        Some(refusal) => EgressError::Refused(refusal.clone()),
        None if error.is_dns() => EgressError::UnknownHost,
        None => EgressError::Failed(error.without_url()),
    }
}

async fn system_lookup(host: String) -> io::Result<Vec<IpAddr>> {
    Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect())
}

/// Gives the client the addresses of the target that the rules allow, and no others.
struct GuardedLookup {
    rules: Arc<EgressRules>,
    lists: HostLists,
    target: EgressTarget,
    lookup: HostLookup,
}

impl Resolve for GuardedLookup {
    fn resolve(&self, name: Name) -> Resolving {
        let looked_up = name.as_str().trim_end_matches('.').to_ascii_lowercase();
        // With a proxy, any other name is that of the proxy, which the operator has chosen.
        let is_proxy = self.rules.proxy() == ProxyMode::Environment && looked_up != self.target.host;
        let (rules, lists, target) = (Arc::clone(&self.rules), self.lists.clone(), self.target.clone());
        let found = (self.lookup)(looked_up);
        Box::pin(async move {
            let found = found.await?;
            let mut refused = None;
            let mut allowed = Vec::new();
            for address in found {
                match rules.check_address(&target, address, &lists) {
                    Err(refusal) if !is_proxy => refused = Some(refusal),
                    _ => allowed.push(SocketAddr::new(address, 0)),
                }
            }
            match refused {
                Some(refusal) if allowed.is_empty() => Err(Box::new(refusal) as _),
                _ => Ok(Box::new(allowed.into_iter()) as Addrs),
            }
        })
    }
}
