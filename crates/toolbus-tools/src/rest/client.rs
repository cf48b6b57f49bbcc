//! The clients that requests of endpoints go through.

use reqwest::Request;
use toolbus_core::Clock;
use toolbus_core::caller::Caller;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::redact::Redactor;
use toolbus_outbound::egress::{Egress, EgressError, EgressRules};
use toolbus_outbound::{Authorizer, Credential, CredentialError, HttpClient, HttpClientError, HttpReply};

use super::response;

/// Sends the requests of endpoints. Clones share its connections.
#[derive(Debug, Clone)]
pub struct RestClient {
    /// For hosts that the configuration names.
    trusted: HttpClient,
    /// For hosts that specifications name.
    egress: Egress,
    /// Learns the tokens that are fetched.
    redactor: Redactor,
}

/// Reason why there is no client: the system's trusted certificates cannot be read, most likely.
#[derive(Debug, thiserror::Error)]
pub enum RestClientError {
    /// For hosts of the configuration.
    #[error(transparent)]
    Http(#[from] HttpClientError),
    /// For other hosts.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

impl RestClient {
    /// Sets the clients up. `rules` admit the hosts that a specification names.
    ///
    /// # Errors
    ///
    /// If TLS cannot be set up.
    pub fn new(rules: EgressRules) -> Result<Self, RestClientError> {
        let egress = Egress::new(rules, concat!("toolbus/", env!("CARGO_PKG_VERSION")))?;
        Ok(Self { trusted: HttpClient::new()?, egress, redactor: Redactor::default() })
    }

    /// The same, with tokens that are fetched removed from all texts by `redactor`.
    #[must_use]
    pub fn redacting(self, redactor: Redactor) -> Self {
        Self { redactor, ..self }
    }

    /// Prepares a credential whose tokens are fetched.
    pub(super) fn authorizer(&self, credential: Credential) -> Result<Authorizer, CredentialError> {
        Authorizer::new(Some(credential), self.trusted.without_redirects(), &self.redactor, Clock::SYSTEM)
    }

    /// Sends a request of the tool `name`; by the rules of its caller if `is_guarded`.
    pub(super) async fn send(
        &self,
        request: Request,
        name: &str,
        is_guarded: bool,
        caller: &Caller,
    ) -> Result<HttpReply, ToolFailure> {
        if !is_guarded {
            return self.trusted.send(request).await.map_err(|error| response::while_sending(name, error));
        }
        let response = self.egress.send(request, self.egress.rules().lists(caller)).await;
        response.map(HttpReply::Response).map_err(|error| match error {
            EgressError::Failed(error) => response::while_reading(name, error),
            EgressError::UnknownHost => {
                let text = format!("Tool '{name}' could not be reached: its host name is not known. Try again later.");
                ToolFailure::new(Cause::ConnectFailed, text)
            }
            EgressError::Refused(refusal) => {
                let text =
                    format!("Tool '{name}' may not be reached for you: {refusal}. Only an operator can allow it.");
                ToolFailure::new(Cause::NotAllowed, text)
            }
            EgressError::Redirect | EgressError::Client(_) => {
                ToolFailure::new(Cause::Failed, format!("Tool '{name}' could not be asked.")).with_detail(error)
            }
        })
    }
}
