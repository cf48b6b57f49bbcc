//! The bus inside the process.
