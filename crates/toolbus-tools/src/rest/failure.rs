//! From an error of the HTTP client to a failure of the call.

use std::error::Error;
use std::io;

use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::text::with_dates;
use toolbus_outbound::SendError;

/// The server had the request, or a part of it.
const LOST: (Cause, &str) =
    (Cause::ConnectionLost, "closed the connection before its answer was complete. It may have acted on the request");

/// A request that failed before there was an answer.
pub(super) fn while_sending(name: &str, SendError { error, is_first }: SendError) -> ToolFailure {
    match judge(&error) {
        (Cause::ConnectFailed, _) if !is_first => of(name, LOST, error),
        verdict => of(name, verdict, error),
    }
}

/// An answer that failed before its end.
pub(super) fn while_reading(name: &str, error: reqwest::Error) -> ToolFailure {
    of(name, judge(&error), error)
}

/// The message names the tool; where it leads is for the log, and what the URL holds for nobody.
fn of(name: &str, (cause, what): (Cause, &str), error: reqwest::Error) -> ToolFailure {
    let error = error.without_url();
    ToolFailure::new(cause, format!("Tool '{name}' {what}.")).with_detail(chain(&error))
}

fn judge(error: &reqwest::Error) -> (Cause, &'static str) {
    if let Some(tls) = find_tls(error) {
        return match tls {
            rustls::Error::InvalidCertificate(_) => {
                (Cause::Failed, "has a TLS certificate that is not trusted. Only an operator can mend this")
            }
            _ => (Cause::Failed, "could not agree on a TLS connection. Only an operator can mend this"),
        };
    }
    if error.is_dns() {
        return (
            Cause::ConnectFailed,
            "could not be reached: its host name is not known. Nothing was sent; try again later",
        );
    }
    if error.is_connect() {
        return (
            Cause::ConnectFailed,
            "could not be reached: there was no connection. Nothing was sent; try again later",
        );
    }
    if sources(error).filter_map(|source| source.downcast_ref::<hyper::Error>()).any(hyper::Error::is_parse) {
        return (Cause::InvalidResult, "answered with something that is not HTTP, or with too many headers");
    }
    let is_corrupt = sources(error)
        .filter_map(|source| source.downcast_ref::<io::Error>())
        .any(|error| matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput));
    if error.is_decode() && is_corrupt {
        return (Cause::InvalidResult, "answered with compressed data that is corrupt");
    }
    LOST
}

fn sources<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// TLS errors travel inside of I/O errors, which leave what they hold out of their sources.
fn find_tls(error: &reqwest::Error) -> Option<&rustls::Error> {
    sources(error).filter_map(|source| source.downcast_ref()).find_map(tls_inside)
}

fn tls_inside(mut outer: &io::Error) -> Option<&rustls::Error> {
    while let Some(inner) = outer.get_ref()?.downcast_ref() {
        outer = inner;
    }
    outer.get_ref()?.downcast_ref()
}

fn chain(error: &reqwest::Error) -> String {
    with_dates(&sources(error).map(ToString::to_string).collect::<Vec<_>>().join(": "))
}
