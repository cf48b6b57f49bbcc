use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use toolbus_protocol::{AgentName, Properties, header};

/// A request as it was sent.
#[derive(Debug, Clone)]
pub struct SignedRequest {
    /// Topic of the request.
    pub topic: String,
    /// The message's properties.
    pub properties: Arc<Properties>,
    /// The message's body.
    pub body: Bytes,
}

impl SignedRequest {
    /// The same request, which the broker drops if it was not taken from its queue within `time`: for peers that look at no
    /// deadline.
    #[must_use]
    pub fn expiring(mut self, time: Duration) -> Self {
        Arc::make_mut(&mut self.properties).expiration = Some(time.as_millis().try_into().unwrap_or(u64::MAX));
        self
    }
}

/// Identity of the caller, with its profile and binding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sender {
    /// The agent, by its own account; absent: none that is known.
    pub agent: Option<AgentName>,
    /// Name that a sender without an agent gives itself: a text that names no agent. Absent: the name that the client
    /// gives itself.
    pub unknown: Option<String>,
    /// The login at the broker, which the broker compares.
    pub login: Option<String>,
    /// The binding, as `channel:account`.
    pub binding: Option<String>,
    /// The profile.
    pub profile: Option<String>,
}

impl Sender {
    /// Adds the sender to a request.
    #[must_use]
    pub fn sign(&self, mut request: SignedRequest) -> SignedRequest {
        self.introduce(Arc::make_mut(&mut request.properties));
        request
    }

    /// Adds the sender to the properties of a request.
    pub fn introduce(&self, properties: &mut Properties) {
        if let Some(source) = self.agent.as_ref().map(ToString::to_string).or_else(|| self.unknown.clone()) {
            properties.headers.retain(|(name, _)| name != header::SOURCE);
            properties.headers.push((header::SOURCE.to_owned(), source));
        }
        let role = [(header::TOOL_PROFILE, &self.profile), (header::BINDING, &self.binding)];
        let given = role.into_iter().filter_map(|(name, value)| Some((header::on_the_wire(name), value.clone()?)));
        properties.headers.extend(given);
        properties.user_id.clone_from(&self.login);
    }
}
