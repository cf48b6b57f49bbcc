//! The stores of Toolbus: [`Memory`], which forgets with its process, and [`Sqlite`], which does not.

mod memory;
mod sqlite;

pub use memory::Memory;
pub use sqlite::{OpenError, Sqlite};
