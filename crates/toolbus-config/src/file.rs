//! Files of the configuration, each in the format that its extension names.
//!
//! TOML has a reader of its own, which keeps lines and columns. JSON and YAML are read by the library `config`, after a
//! look at facts that it does not report: keys given twice, positions, and how much the aliases of YAML stand for.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use config::{FileFormat, Format as _, Value as Parsed, ValueKind};
use serde_json::{Map, Number, Value};

use crate::format::ConfigFormat;
use crate::problem::Problem;
use crate::tree::{ParsedFile, Tree};
use crate::{json, toml, yaml};

/// Largest configuration file, in bytes: room for ten thousand endpoints.
const MAX_FILE: u64 = 16 * 1024 * 1024;
/// Largest whole number that every reader takes for the same: 2^53.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Puts the values of a file over those that are there.
///
/// # Errors
///
/// If the file cannot be read or is larger than 16 MiB, if its extension names no format, or if it is not of that format.
pub fn layer(tree: &mut Tree, path: &Path) -> Result<(), Vec<Problem>> {
    let file = path.display().to_string();
    let refused = |what: String| vec![Problem { location: file.clone(), key: String::new(), what }];
    let format = ConfigFormat::of(path).map_err(|error| refused(error.to_string()))?;
    let text = read_text(path).map_err(|what| refused(what + advice(path)))?;
    // Editors on Windows begin files with a mark that is no part of the text.
    let plain = text.trim_start_matches('\u{feff}');
    let document = match format {
        ConfigFormat::Toml => toml::read(&file, &text)?,
        ConfigFormat::Json => {
            json::check(&file, plain)?;
            let mut document = parsed(FileFormat::Json, file, plain)?;
            json::without_schema(&mut document.root);
            document
        }
        ConfigFormat::Yaml => match yaml::scan(&file, plain).map_err(|problem| vec![problem])? {
            Some(spans) => ParsedFile { spans, ..parsed(FileFormat::Yaml, file, plain)? },
            None => return Ok(()),
        },
    };
    tree.lay(document);
    Ok(())
}

/// Advice about a file that this user may not read: it may be the service's, and was found, not named.
fn advice(path: &Path) -> &'static str {
    match File::open(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            "; run this as a user who may read it, or name another file with --config"
        }
        _ => "",
    }
}

/// Reads a text file of the configuration, or one that it names.
///
/// # Errors
///
/// If the file cannot be read, is larger than 16 MiB or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|error| format!("the file cannot be read: {error}"))?;
    let mut text = String::new();
    file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(|error| format!("the file cannot be read: {error}"))?;
    match text.len() as u64 > MAX_FILE {
        true => Err("the file is larger than 16 MiB".to_owned()),
        false => Ok(text),
    }
}

/// Reads a document that the configuration names and that has a form of its own, such as a specification: JSON if it
/// begins with `{`, otherwise YAML. `name` is what problems call it.
///
/// # Errors
///
/// If it is neither, if its root is no object, or if a key is given twice.
pub fn document(name: &str, text: &str) -> Result<Value, Vec<Problem>> {
    let plain = text.trim_start_matches('\u{feff}');
    if plain.trim_start().starts_with('{') {
        json::check(name, plain)?;
        // Not the error's own text: it may repeat a secret.
        return serde_json::from_str(plain).map_err(|_| vec![unreadable(name.to_owned())]);
    }
    match yaml::scan_without_positions(name, plain).map_err(|problem| vec![problem])? {
        true => Ok(parsed(FileFormat::Yaml, name.to_owned(), plain)?.root),
        false => Ok(Value::Object(Map::new())),
    }
}

/// Reads a text with the library.
fn parsed(format: FileFormat, file: String, text: &str) -> Result<ParsedFile, Vec<Problem>> {
    match format.parse(Some(&file), text) {
        Ok(entries) => {
            let root = entries.into_iter().map(|(key, entry)| (key, value(entry))).collect::<Map<_, _>>();
            Ok(ParsedFile { file, root: Value::Object(root), spans: Default::default() })
        }
        // Not the error's own text: it may repeat a secret.
        Err(_) => Err(vec![unreadable(file)]),
    }
}

fn unreadable(location: String) -> Problem {
    Problem { location, key: String::new(), what: "cannot be read as keys and values".to_owned() }
}

/// A value as the tree has it. What JSON cannot write, such as an infinite number, is null: that fits no schema.
fn value(parsed: Parsed) -> Value {
    match parsed.kind {
        ValueKind::Nil => Value::Null,
        ValueKind::Boolean(flag) => Value::Bool(flag),
        ValueKind::I64(number) => Value::from(number),
        ValueKind::U64(number) => Value::from(number),
        ValueKind::I128(number) => i64::try_from(number).map_or(Value::Null, Value::from),
        ValueKind::U128(number) => u64::try_from(number).map_or(Value::Null, Value::from),
        ValueKind::Float(number) if number.fract() == 0.0 && number.abs() <= MAX_EXACT => Value::from(number as i64),
        ValueKind::Float(number) => Number::from_f64(number).map_or(Value::Null, Value::Number),
        ValueKind::String(text) => Value::String(text),
        ValueKind::Array(elements) => elements.into_iter().map(value).collect(),
        ValueKind::Table(entries) => entries.into_iter().map(|(key, entry)| (key, value(entry))).collect(),
    }
}
