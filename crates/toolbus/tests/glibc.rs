//! Systems that the program starts on, by the versions of glibc that its symbols need.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

/// Minor version of glibc on Ubuntu 22.04. RHEL 9 has the previous one, which lacks the `hypotf` that reading PDF uses.
const NEEDED: u32 = 35;
/// Last minor version whose headers name symbols of an earlier one alone.
const PLAIN: u32 = 37;

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_plain_build_needs_glibc_2_35_at_most() {
    let program = env!("CARGO_BIN_EXE_toolbus");
    let versions = output("readelf", &["--version-info", "--wide", program]);
    let needed: Vec<&str> = versions.split_whitespace().filter_map(|word| word.strip_prefix("GLIBC_")).collect();
    assert!(needed.len() > 10, "{versions}");
    // Packed relocations need glibc 2.36, by this name.
    assert!(!needed.contains(&"ABI_DT_RELR"));
    let minor = |version: &&str| version.strip_prefix("2.")?.split('.').next()?.parse::<u32>().ok();
    let here = output("getconf", &["GNU_LIBC_VERSION"]);
    let here = minor(&here.trim().trim_start_matches("glibc ")).unwrap();
    let most = needed.iter().filter_map(minor).max().unwrap();
    assert!(most <= NEEDED || here > PLAIN, "it needs glibc 2.{most}, built with 2.{here}");
}
