//! Tells the binary which commit it was built from.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TOOLBUS_COMMIT");
    let given = std::env::var("TOOLBUS_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| {
        watch_head();
        git(&["rev-parse", "--short=12", "HEAD"])
    });
    println!("cargo::rustc-env=TOOLBUS_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
}

/// Builds again when another commit is checked out, or a commit is made.
fn watch_head() {
    let reference = git(&["symbolic-ref", "--quiet", "HEAD"]);
    let names = [Some("HEAD".to_owned()), reference, Some("packed-refs".to_owned())];
    for name in names.into_iter().flatten() {
        // A file that is absent would make every build start anew.
        if let Some(file) = git(&["rev-parse", "--git-path", &name]).filter(|file| Path::new(file).exists()) {
            println!("cargo::rerun-if-changed={file}");
        }
    }
}

/// Returns the output of git; `None` without git or a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}
