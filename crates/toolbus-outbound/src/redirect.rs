//! Redirects: followed by hand, because a failure after one is not a failure before anything was sent.

use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, LOCATION};
use reqwest::{Method, Request, Response, StatusCode};

/// Redirects that one call follows.
const MAX_FOLLOWED: usize = 5;

/// Reason why a redirect is not followed. The target is not shown: it may hold text that the caller must not see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RedirectError {
    /// Another origin.
    #[error("it leads to another server")]
    OtherServer,
    /// An invalid address.
    #[error("it leads to no usable address")]
    Unusable,
    /// Too many redirects.
    #[error("there were {MAX_FOLLOWED} before it")]
    TooMany,
}

/// The target of a redirect; `None` for any other response.
pub(crate) fn location(response: &Response) -> Option<HeaderValue> {
    let is_redirect = matches!(
        response.status(),
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    response.headers().get(LOCATION).filter(|_| is_redirect).cloned()
}

/// The request that the redirect `response` demands instead of `request`.
pub(crate) fn follow(
    mut request: Request,
    response: &Response,
    location: HeaderValue,
    followed: usize,
) -> Result<Request, RedirectError> {
    let location = location.to_str().map_err(|_| RedirectError::Unusable)?;
    let target = response.url().join(location).map_err(|_| RedirectError::Unusable)?;
    if target.origin() != response.url().origin() {
        return Err(RedirectError::OtherServer);
    }
    if followed >= MAX_FOLLOWED {
        return Err(RedirectError::TooMany);
    }
    *request.url_mut() = target;
    if becomes_get(response.status(), request.method()) {
        *request.method_mut() = Method::GET;
        *request.body_mut() = None;
        request.headers_mut().remove(CONTENT_TYPE);
        request.headers_mut().remove(CONTENT_ENCODING);
    }
    Ok(request)
}

/// RFC 9110, 15.4: 303 redirects to another resource, and after 301 and 302 a `POST` is not repeated.
fn becomes_get(status: StatusCode, method: &Method) -> bool {
    match status {
        StatusCode::SEE_OTHER => method != Method::HEAD,
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => method == Method::POST,
        _ => false,
    }
}
