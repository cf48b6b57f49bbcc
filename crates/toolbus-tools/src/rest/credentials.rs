//! The credentials and headers of requests, shared or by agent, and the mask that removes them from responses.
//!
//! The caller can see the changes of a [`ResponseMask`], and may choose the text that is echoed. So a mask has the
//! credentials of one request alone, and compares them whole: a part of one that changed a response could be guessed,
//! character by character.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_outbound::{Authorizer, TokenError, headers};

use super::{Credential, CredentialError, Endpoint, EndpointError};
use crate::Secret;

/// The credentials of an endpoint's requests.
pub(super) enum EndpointCredentials {
    /// The same for every caller.
    Shared(RequestCredentials),
    /// Each agent's own; other callers are refused.
    PerAgent(BTreeMap<AgentName, RequestCredentials>),
}

/// Headers of requests, and mask of their responses.
pub(super) struct RequestCredentials {
    /// Headers of every request, credentials that are known beforehand included.
    headers: HeaderMap,
    /// A server that echoes its request must not hand these credentials to the caller.
    mask: ResponseMask,
    /// Fetches the token of each request, if the credential is one that is fetched.
    fetched: Option<Authorizer>,
}

/// Headers of one request, and mask of its response.
pub(super) struct Carried<'a> {
    pub(super) headers: Cow<'a, HeaderMap>,
    pub(super) mask: Cow<'a, ResponseMask>,
    /// The header with the token that was fetched.
    token: Option<HeaderValue>,
}

impl RequestCredentials {
    /// Returns the credentials of a request of the tool `name`. Fetches a token if one is needed and none is valid.
    ///
    /// # Errors
    ///
    /// If the token endpoint gives no token.
    pub(super) async fn carry(&self, name: &str) -> Result<Carried<'_>, ToolFailure> {
        let mut carried =
            Carried { headers: Cow::Borrowed(&self.headers), mask: Cow::Borrowed(&self.mask), token: None };
        let Some(authorizer) = &self.fetched else { return Ok(carried) };
        if let Some((header, value)) = authorizer.header().await.map_err(|error| no_token(name, error))? {
            let token = value.to_str().ok().and_then(|text| text.split_once(' ')).map(|(_, token)| Secret::new(token));
            carried.mask.to_mut().0.extend(token);
            carried.headers.to_mut().insert(header, value.clone());
            carried.token = Some(value);
        }
        Ok(carried)
    }

    /// Drops the token of a request that was refused. Returns whether another one can be fetched.
    pub(super) async fn forget(&self, refused: &Carried<'_>) -> bool {
        match (&self.fetched, &refused.token) {
            (Some(authorizer), Some(token)) => authorizer.forget(token).await,
            _ => false,
        }
    }
}

fn no_token(name: &str, error: TokenError) -> ToolFailure {
    let failure = match error {
        TokenError::Unreachable(_) | TokenError::Unavailable { .. } => {
            let text = format!("Tool '{name}' cannot get its access token at present. Try again later.");
            ToolFailure::new(Cause::ConnectFailed, text)
        }
        TokenError::Refused { .. } | TokenError::Unusable { .. } => {
            let text = format!("Tool '{name}' gets no access token. Only an operator can change that.");
            ToolFailure::new(Cause::AuthRequired, text)
        }
    };
    failure.with_detail(error)
}

impl EndpointCredentials {
    /// Prepares those of an endpoint; `fetching` those whose tokens are fetched.
    pub(super) fn new(
        endpoint: &Endpoint,
        fetching: impl Fn(Credential) -> Result<Authorizer, CredentialError>,
    ) -> Result<Self, EndpointError> {
        let of = |credential: Option<Credential>| {
            let (header, fetched) = match &credential {
                None => (None, None),
                // Each request has a token instead of this value.
                Some(own @ Credential::ClientCredentials(_)) => {
                    (Some((AUTHORIZATION, HeaderValue::from_static("Bearer"))), Some(fetching(own.clone())?))
                }
                Some(known) => {
                    let (name, value) = known.header()?;
                    (Some((headers::unreserved(name)?, value)), None)
                }
            };
            let confidential = credential.as_ref().map(Credential::confidential).unwrap_or_default();
            Ok::<_, CredentialError>((header, fetched, ResponseMask::new(confidential, &endpoint.headers)))
        };
        let carried = |(header, fetched, mask)| {
            let headers = headers::with_configured(header, &endpoint.headers).map_err(EndpointError::Headers)?;
            Ok(RequestCredentials { headers, mask, fetched })
        };
        let Some(auth) = &endpoint.auth else {
            return carried(of(None).map_err(EndpointError::Credential)?).map(Self::Shared);
        };
        if !auth.has_agents() {
            let shared = auth.shared().and_then(of).map_err(EndpointError::Credential)?;
            return carried(shared).map(Self::Shared);
        }
        let of_agent = |(agent, credential): (&AgentName, Result<Option<Credential>, CredentialError>)| {
            let own = credential.and_then(|own| own.ok_or(CredentialError::Missing)).and_then(|own| of(Some(own)));
            let own = own.map_err(|error| EndpointError::AgentCredential { agent: agent.clone(), error })?;
            Ok((agent.clone(), carried(own)?))
        };
        auth.per_agent().map(of_agent).collect::<Result<_, _>>().map(Self::PerAgent)
    }

    /// Returns the credentials of `caller`, for the tool `name`.
    ///
    /// # Errors
    ///
    /// If its agent has no credential; the text names no agent that has one.
    pub(super) fn of(&self, name: &str, caller: &Caller) -> Result<&RequestCredentials, ToolFailure> {
        match self {
            Self::Shared(carried) => Ok(carried),
            Self::PerAgent(agents) => caller.agent.as_ref().and_then(|agent| agents.get(agent)).ok_or_else(|| {
                let message = format!(
                    "Tool '{name}' needs credentials of the agent that calls it, and has none for this one. Only an \
                     operator can add them."
                );
                ToolFailure::new(Cause::AuthRequired, message)
            }),
        }
    }
}

/// Shortest credential that is looked for, in bytes: a shorter one would match by chance.
const MIN_CONFIDENTIAL: usize = 8;

/// Text that stands in a response where a credential stood.
const REDACTED: &str = "[redacted]";

/// The first half of media types: a header's value that begins so is no credential.
const MEDIA: [&str; 8] = ["application", "audio", "font", "image", "multipart", "text", "video", "*"];

/// The texts that must not come back in the response to a request.
#[derive(Debug, Clone, Default)]
pub(super) struct ResponseMask(Vec<Secret>);

impl ResponseMask {
    /// Hides `credentials`, and the values of `headers` except media types, because any of them may be secret.
    fn new(credentials: Vec<Secret>, headers: &BTreeMap<String, Secret>) -> Self {
        let mut hidden = credentials;
        for value in headers.values() {
            let text = value.expose().trim();
            if is_media(text) {
                continue;
            }
            // `Token abc…`: the service may show the credential without its scheme.
            let credential = text.split_once(' ').map(|(_, credential)| Secret::new(credential.trim()));
            hidden.extend(credential);
            hidden.push(Secret::new(text));
        }
        hidden.retain(|secret| secret.expose().len() >= MIN_CONFIDENTIAL);
        Self(hidden)
    }

    /// Hides them in a text that is all there is.
    pub(super) fn whole(&self, text: &str) -> String {
        self.until(text, text.len())
    }

    /// Hides them in a text, which is copied only if it has one.
    pub(super) fn masked(&self, text: String) -> String {
        if self.0.iter().any(|secret| text.contains(secret.expose())) { self.whole(&text) } else { text }
    }

    /// Hides them in the beginning of a longer text. Of its end as much is left out as a credential may have been cut to,
    /// whatever stands there.
    pub(super) fn start(&self, text: &str) -> String {
        let longest = self.0.iter().map(|secret| secret.expose().len()).max().unwrap_or_default();
        let cut = longest.saturating_sub(1);
        self.until(text, text.floor_char_boundary(text.len().saturating_sub(cut)))
    }

    /// The text up to `end`, without the credentials that begin before it.
    fn until(&self, text: &str, end: usize) -> String {
        let found = |secret: &Secret| -> Vec<Range<usize>> {
            let all = text.match_indices(secret.expose()).map(|(start, found)| start..start + found.len());
            all.take_while(|range| range.start < end).collect()
        };
        let mut ranges: Vec<_> = self.0.iter().flat_map(found).collect();
        // One may be part of another.
        ranges.sort_unstable_by_key(|range| (range.start, Reverse(range.end)));
        let mut masked = String::new();
        let mut done = 0;
        for range in ranges {
            if let Some(before) = text.get(done..range.start) {
                masked.push_str(before);
                masked.push_str(REDACTED);
            }
            done = done.max(range.end);
        }
        masked.push_str(text.get(done..end).unwrap_or_default());
        masked
    }
}

fn is_media(value: &str) -> bool {
    value.split_once('/').is_some_and(|(kind, _)| MEDIA.iter().any(|known| kind.eq_ignore_ascii_case(known)))
}

#[cfg(test)]
mod tests {
    use super::ResponseMask;
    use crate::Secret;

    fn mask(headers: &[&str]) -> ResponseMask {
        let headers = headers.iter().enumerate().map(|(index, value)| (format!("x-{index}"), Secret::from(*value)));
        ResponseMask::new(vec!["hunter2-hunter2".into()], &headers.collect())
    }

    #[test]
    fn credentials_and_the_values_of_headers_are_hidden() {
        let mask = mask(&["Token s3cr3t-s3cr3t", "application/json", "text/html;q=0.9", "short"]);
        let table = [
            ("a hunter2-hunter2 b", "a [redacted] b"),
            ("Token s3cr3t-s3cr3t", "[redacted]"),
            ("token=s3cr3t-s3cr3t", "token=[redacted]"),
            ("application/json text/html;q=0.9 short", "application/json text/html;q=0.9 short"),
        ];
        for (text, expected) in table {
            assert_eq!(mask.whole(text), expected);
        }
    }

    #[test]
    fn credentials_that_share_characters_are_hidden_whole() {
        let mask = mask(&["hunter2-hunter2-longer", "longer-and-longer"]);
        let table = [
            ("hunter2-hunter2-longer hunter2-hunter2", "[redacted] [redacted]"),
            ("a hunter2-hunter2-longer-and-longer b", "a [redacted] b"),
            ("hunter2-hunter2hunter2-hunter2", "[redacted][redacted]"),
        ];
        for (text, expected) in table {
            assert_eq!(mask.whole(text), expected);
        }
    }

    #[test]
    fn no_part_of_a_credential_that_the_end_cuts_is_left() {
        let secret = "geheim-größe-größe";
        let mask = mask(&[secret]);
        let before = "x".repeat(100);
        for cut in secret.char_indices().map(|(length, _)| &secret[..length]) {
            let shown = mask.start(&format!("{before}{cut}"));
            assert!(before.starts_with(&shown), "{shown}");
        }
        for after in 0..secret.len() {
            let shown = mask.start(&format!("{before}{secret}{}", "y".repeat(after)));
            assert_eq!(shown, format!("{before}[redacted]"));
        }
    }

    #[test]
    fn the_end_of_a_cut_text_goes_whatever_it_is() {
        let mask = mask(&[]);
        let kept = |end: &str| mask.start(&format!("{}{end}", "x".repeat(100))).len();
        for right in (1.."hunter2-hunter2".len()).map(|length| &"hunter2-hunter2"[..length]) {
            let wrong = format!("{}?", &right[..right.len() - 1]);
            assert_eq!(kept(right), kept(&wrong), "{right}");
        }
        assert_eq!(mask.start("short"), "");
        assert_eq!(ResponseMask::default().start("whole"), "whole");
    }
}
