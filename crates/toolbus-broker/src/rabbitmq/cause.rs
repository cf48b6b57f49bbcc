//! Errors of the AMQP client in words for an operator.

use lapin::{Error, ErrorKind};

/// AMQP reply codes that mean something here.
pub(super) const ACCESS_REFUSED: u16 = 403;
pub(super) const NOT_FOUND: u16 = 404;
pub(super) const PRECONDITION_FAILED: u16 = 406;
const NOT_ALLOWED: u16 = 530;

/// The broker's reply code, if the error is the broker's.
pub(super) fn code(error: &Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

/// What went wrong. The broker's own text where there is one; it holds no credentials.
pub(super) fn words(error: &Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        ErrorKind::IOError(error) => error.to_string(),
        _ => error.to_string(),
    }
}

/// Why a connection could not be opened.
pub(super) fn connecting(error: &Error) -> String {
    match code(error) {
        Some(ACCESS_REFUSED) => {
            format!("the broker refused the login: check user and password in bus.url ({})", words(error))
        }
        Some(NOT_ALLOWED) => {
            format!(
                "the broker refused the virtual host: check its name in bus.url and the user's rights ({})",
                words(error)
            )
        }
        _ => words(error),
    }
}
