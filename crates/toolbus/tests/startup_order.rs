//! startup.ld, the order of functions in the program that is shipped, which no test builds.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

const ORDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/startup.ld");

/// The functions of a program, by address.
fn functions(program: &str) -> Vec<String> {
    let output = Command::new("nm").args(["--numeric-sort", program]).output().unwrap();
    assert!(output.status.success(), "nm: {}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let function = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        [_, "t" | "T", name] => Some(name.to_owned()),
        _ => None,
    };
    let functions: Vec<String> = lines.lines().filter_map(function).collect();
    assert!(!functions.is_empty(), "{program} has no symbols: the profile `dev` has, `release` strips them");
    functions
}

#[test]
fn nearly_all_names_are_those_of_functions_in_the_program() {
    let functions: BTreeSet<String> = functions(env!("CARGO_BIN_EXE_toolbus")).into_iter().collect();
    let order = fs::read_to_string(ORDER).unwrap();
    let names = || order.split([' ', '\n', '(', ')']).filter_map(|word| word.strip_prefix(".text.")?.strip_suffix('*'));
    let is_there =
        |name: &&str| functions.range((*name).to_owned()..).next().is_some_and(|next| next.starts_with(*name));
    let (all, there) = (names().count(), names().filter(is_there).count());
    assert!(all > 1_000, "{all} names");
    assert!(there * 10 >= all * 9, "{there} of {all} names are in the program: startup.py writes the file anew");
}

#[test]
fn the_linker_puts_these_functions_first() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("program.c"), folder.path().join("program"));
    fs::write(&source, "int other(void) { return 0; } int main(void) { return other(); }").unwrap();
    let linked = Command::new("cc")
        .args(["-ffunction-sections", "-O0", &format!("-Wl,-T,{ORDER}"), "-o"])
        .args([&program, &source])
        .output()
        .unwrap();
    assert!(linked.status.success(), "cc: {}", String::from_utf8_lossy(&linked.stderr));
    let functions = functions(program.to_str().unwrap());
    let place = |name| functions.iter().position(|function| function == name).unwrap();
    assert!(place("main") < place("other"), "{functions:?}");
}
