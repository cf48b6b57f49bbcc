//! One server: kept connected, started again when it ends.
