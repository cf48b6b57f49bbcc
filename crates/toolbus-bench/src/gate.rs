//! What a measurement is held to.

use std::fmt;

use serde::Serialize;

/// What must hold.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Gate {
    pub(crate) what: String,
    pub(crate) wanted: &'static str,
    pub(crate) measured: String,
    pub(crate) is_met: bool,
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, wanted, measured, is_met } = self;
        write!(f, "{}: {what} {measured}, wanted {wanted}", if *is_met { "met" } else { "MISSED" })
    }
}
