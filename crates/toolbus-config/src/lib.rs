//! Configuration in layers: files, environment and command line become one [`Tree`] of values that know where each was
//! given. The tree is compared with a JSON Schema, and every difference becomes a [`Problem`] with its location.
//!
//! This crate knows no key of any configuration: the schema comes from the types of the caller ([`schema_of`]), and so do
//! the checks of its texts ([`Formats`]).

mod cpu;
mod duration;
mod file;
mod format;
mod json;
mod layers;
mod problem;
mod schema;
mod secret;
mod size;
mod toml;
mod tree;
mod validate;
mod yaml;

pub use cpu::{Cpu, CpuError};
pub use duration::{DurationError, HumanDuration};
pub use file::{document, layer, read_text};
pub use format::{ConfigFormat, UnknownConfigFormat};
pub use layers::{Override, command_line, environment};
pub use problem::{MAX_SHOWN, Origin, Part, Position, Problem, Problems, Span, expected, near_names, nearest};
pub use schema::{SchemaNode, schema_of};
pub use secret::{Secret, resolve_secrets, secret_schema};
pub use size::{ByteSize, LargeSize, Size, SizeError};
pub use toml::toml_sections;
pub use tree::{KeyPath, Tree, key_path, push_key};
pub use validate::{Check, Formats, InvalidSchema, SchemaDifference, differences, in_order};
