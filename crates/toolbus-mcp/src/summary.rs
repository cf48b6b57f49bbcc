//! What a server offers, in one line.
