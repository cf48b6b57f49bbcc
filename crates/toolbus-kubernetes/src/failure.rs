//! Failures of the API server: whose they are, and what an operator does about them.

use std::time::Duration;

use kube::Error;
use kube::core::Status;

/// Longest part of a message of the API server that is shown, in characters.
const LONGEST_MESSAGE: usize = 300;
/// Longest time that the API server may request to wait before a request is sent again.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Reason why a request to the API server failed. The texts are for an operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiFailure {
    /// The request will be refused again, until an operator has changed something.
    #[error("{0}")]
    Refused(String),
    /// The same request may succeed later.
    #[error("{message}")]
    Retryable {
        /// Text on what happened.
        message: String,
        /// Time that the API server requests to wait.
        wait: Option<Duration>,
    },
    /// There is an object of that name already.
    #[error("there is an object of that name already")]
    Exists,
    /// There is no such object, or it does not exist any more.
    #[error("it does not exist any more")]
    Missing,
    /// Version that was watched from and is too old.
    #[error("the API server does not keep the version that was watched from")]
    Expired,
}

/// A request, as the rules of a Role name it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ApiRequest<'a> {
    pub(crate) verb: &'static str,
    pub(crate) resource: &'static str,
    pub(crate) namespace: &'a str,
}

impl ApiRequest<'_> {
    pub(crate) fn failure(self, error: &Error) -> ApiFailure {
        match error {
            Error::Api(status) => self.refusal(status),
            Error::SerdeError(_) | Error::FromUtf8(_) | Error::LinesCodecMaxLineLengthExceeded => {
                ApiFailure::Retryable { message: format!("cannot read the API server's response: {error}"), wait: None }
            }
            Error::Auth(error) => ApiFailure::Refused(format!("there are no credentials for the API server: {error}")),
            error => {
                // The innermost error: the others are of layers in between.
                let mut cause: &dyn std::error::Error = error;
                while let Some(source) = cause.source() {
                    cause = source;
                }
                ApiFailure::Retryable { message: format!("no connection to the API server: {cause}"), wait: None }
            }
        }
    }

    pub(crate) fn refusal(self, status: &Status) -> ApiFailure {
        let Self { verb, resource, namespace } = self;
        let message = shortened(&status.message);
        let wait = status.details.as_ref().map(|details| Duration::from_secs(details.retry_after_seconds.into()));
        let wait = wait.filter(|wait| !wait.is_zero()).map(|wait| wait.min(LONGEST_WAIT));
        let retryable = |message| ApiFailure::Retryable { message, wait };
        match status.code {
            401 => ApiFailure::Refused(format!("the API server does not accept the daemon's token: {message}")),
            403 if status.message.contains("exceeded quota") => {
                retryable(format!("the quota of namespace `{namespace}` is used up: {message}"))
            }
            403 => ApiFailure::Refused(format!(
                "the daemon may not {verb} {resource} in namespace `{namespace}`; bind the Role of \
                 deploy/kubernetes/scripts.yaml, or claims.yaml with a warm pool, to its service account, or correct \
                 `script.kubernetes.namespace`: {message}"
            )),
            // Of the namespace or of the kind: there is no name yet.
            404 if verb == "create" && message.contains("namespaces") => {
                ApiFailure::Refused(format!("there is no namespace `{namespace}` for scripts: {message}"))
            }
            404 if matches!(verb, "create" | "list") => ApiFailure::Refused(format!(
                "the cluster has no {resource}; install agent-sandbox 0.5 or later with its extensions: {message}"
            )),
            404 => ApiFailure::Missing,
            409 if status.reason == "AlreadyExists" => ApiFailure::Exists,
            410 => ApiFailure::Expired,
            408 | 409 | 429 | 500.. => {
                retryable(format!("the API server cannot serve now ({}): {message}", status.code))
            }
            code => ApiFailure::Refused(format!("the API server refused to {verb} {resource} ({code}): {message}")),
        }
    }
}

/// The beginning of a message, on one line.
pub(crate) fn shortened(message: &str) -> String {
    let mut characters = message.chars().map(|character| if character.is_control() { ' ' } else { character });
    let beginning: String = characters.by_ref().take(LONGEST_MESSAGE).collect();
    if characters.next().is_none() { beginning } else { beginning + "…" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_api_server_names_its_remedy() {
        let request = ApiRequest { verb: "create", resource: "pods", namespace: "scripts" };
        let displayed = |code, reason: &str, message: &str| {
            let status = Status { code, reason: reason.to_owned(), message: message.to_owned(), ..Status::default() };
            format!("{:?}", request.refusal(&status))
        };
        let all = [
            displayed(401, "Unauthorized", "Unauthorized"),
            displayed(403, "Forbidden", "pods is forbidden"),
            displayed(403, "Forbidden", "pods \"x\" is forbidden: exceeded quota: q"),
            displayed(404, "NotFound", "namespaces \"scripts\" not found"),
            displayed(409, "AlreadyExists", "pods \"x\" already exists"),
            displayed(409, "Conflict", "the object has been modified"),
            displayed(410, "Expired", "too old resource version"),
            displayed(422, "Invalid", "Pod \"x\" is invalid:\nspec.containers[0].image: Required value"),
            displayed(429, "TooManyRequests", "too many requests"),
            displayed(503, "ServiceUnavailable", "etcd is away"),
        ];
        insta::assert_snapshot!(all.join("\n"), @r#"
        Refused("the API server does not accept the daemon's token: Unauthorized")
        Refused("the daemon may not create pods in namespace `scripts`; bind the Role of deploy/kubernetes/scripts.yaml, or claims.yaml with a warm pool, to its service account, or correct `script.kubernetes.namespace`: pods is forbidden")
        Retryable { message: "the quota of namespace `scripts` is used up: pods \"x\" is forbidden: exceeded quota: q", wait: None }
        Refused("there is no namespace `scripts` for scripts: namespaces \"scripts\" not found")
        Exists
        Retryable { message: "the API server cannot serve now (409): the object has been modified", wait: None }
        Expired
        Refused("the API server refused to create pods (422): Pod \"x\" is invalid: spec.containers[0].image: Required value")
        Retryable { message: "the API server cannot serve now (429): too many requests", wait: None }
        Retryable { message: "the API server cannot serve now (503): etcd is away", wait: None }
        "#);
        let long = displayed(422, "Invalid", &"x".repeat(10_000));
        assert!(long.len() < 500, "{long}");
    }
}
