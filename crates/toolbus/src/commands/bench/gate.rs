//! What a measurement is held to.

use std::fmt;

use serde::Serialize;

/// What must hold.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Gate {
    pub(super) what: String,
    pub(super) wanted: &'static str,
    pub(super) measured: String,
    pub(super) is_met: bool,
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, wanted, measured, is_met } = self;
        write!(f, "{}: {what} {measured}, wanted {wanted}", if *is_met { "met" } else { "MISSED" })
    }
}
