//! The life of sessions, with instances that count their calls and note what happens to them.

mod bounds;
mod ending;
mod fixture;
mod starting;
