//! The stores of Toolbus: [`Memory`], which lives as long as its process, and [`Sqlite`], one file. Each comes with a
//! ledger.

mod memory;
mod memory_ledger;
mod sqlite;
mod sqlite_ledger;

pub use memory::Memory;
pub use memory_ledger::MemoryLedger;
pub use sqlite::{OpenError, Sqlite};
pub use sqlite_ledger::SqliteLedger;
