//! The stores of Toolbus: [`Memory`], which lives as long as its process, and [`Sqlite`], one file.

mod memory;
mod sqlite;

pub use memory::Memory;
pub use sqlite::{OpenError, Sqlite};
