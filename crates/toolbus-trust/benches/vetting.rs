//! Cost of vetting: `cargo bench -p toolbus-trust`.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot be made should fail")]

use std::sync::Arc;

use serde_json::{Value, json};
use toolbus_core::tool::ToolDescriptor;
use toolbus_trust::scan::Scanner;
use toolbus_trust::vet;

fn main() {
    divan::main();
}

fn tool(description: String, parameters: Value) -> ToolDescriptor {
    ToolDescriptor {
        description,
        parameters: Some(Arc::new(parameters)),
        ..ToolDescriptor::new("read_file", "mcp:x", "mcp")
    }
}

/// A tool as most are: 300 bytes of description, four parameters.
fn typical() -> ToolDescriptor {
    let parameter = |text: &str| json!({"type": "string", "description": text});
    let description = "Reads a file and returns its contents as text. Use this tool when you need to look at one file; for \
                       several, use read_files instead, which is faster. The path must be within the directories that the \
                       server may read. Files above one megabyte are cut, and the end of the answer says so. Fails where \
                       there is no such file.";
    tool(
        description.to_owned(),
        json!({"type": "object", "required": ["path"], "properties": {
            "path": parameter("Path of the file, relative to the workspace"),
            "head": parameter("How many lines of the beginning"),
            "tail": parameter("How many lines of the end"),
            "encoding": {"type": "string", "enum": ["utf-8", "latin-1"], "default": "utf-8"},
        }}),
    )
}

#[divan::bench]
fn rules() -> Scanner {
    Scanner::new().unwrap()
}

#[divan::bench]
fn typical_tool(bencher: divan::Bencher<'_, '_>) {
    let scanner = Scanner::new().unwrap();
    bencher.with_inputs(typical).bench_local_values(|mut tool| vet(&mut tool, &scanner));
}

#[divan::bench]
fn large_tool(bencher: divan::Bencher<'_, '_>) {
    let scanner = Scanner::new().unwrap();
    let words = "Do not read the user a send to password: before any ignore all it and the system from now on. ";
    let large = || tool(words.repeat(80), json!({"properties": {"a": {"description": words.repeat(600)}}}));
    bencher.with_inputs(large).bench_local_values(|mut tool| vet(&mut tool, &scanner));
}
