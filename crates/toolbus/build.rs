//! Tells the binary which commit it was built from, and how far it is optimised; packs its relocations, and orders its
//! functions.

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
    let opt_level = std::env::var("OPT_LEVEL").unwrap_or_default();
    println!("cargo::rustc-env=TOOLBUS_OPT_LEVEL={opt_level}");
    if reads_packed_relocations() {
        // Unpacked they are 1.3 MB of the program, and of an idle daemon's memory, because a start reads all of them.
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    // The profile `dist`. With functions that were not optimised the order would not hold.
    if opt_level == "z" && std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rerun-if-changed=startup.ld");
        let order = format!("{}/startup.ld", std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default());
        for argument in ["-T", &order] {
            println!("cargo::rustc-link-arg-bins=-Xlinker");
            println!("cargo::rustc-link-arg-bins={argument}");
        }
    }
}

/// Whether the C library here reads packed relocations (DT_RELR): glibc does since 2.36.
fn reads_packed_relocations() -> bool {
    let is_here = std::env::var("HOST").ok() == std::env::var("TARGET").ok();
    let version = || {
        let text = output("getconf", &["GNU_LIBC_VERSION"])?;
        let (major, minor) = text.strip_prefix("glibc ")?.split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    };
    is_here && version().is_some_and(|version| version >= (2, 36))
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

/// What git says, or nothing where there is no git or no repository.
fn git(arguments: &[&str]) -> Option<String> {
    output("git", arguments)
}

/// What a program writes, if it succeeds and writes anything.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}
