//! What is done about texts that tools and their servers bring along, before a model reads them.

mod definition;
pub mod pins;
pub mod scan;
pub mod schema;
pub mod text;

pub use definition::vet;
