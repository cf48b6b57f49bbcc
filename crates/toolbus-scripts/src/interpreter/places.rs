//! What an interpreter must be able to read.

use std::path::{Path, PathBuf};

use crate::system;

/// What is below the folder that Python is installed in. The folder itself may be `/usr`, and hold much more.
const INSTALLED: [&str; 6] = ["bin", "lib", "lib64", "ssl", "share/zoneinfo", "pyvenv.cfg"];

/// What modules of the standard library read where they see that it exists, and fail if they cannot.
const OF_MODULES: [&str; 2] = ["/etc/mime.types", "/etc/httpd/mime.types"];

/// Whether an executable is that of a virtual environment.
pub(super) fn is_virtual(executable: &Path) -> bool {
    executable.ancestors().skip(1).take(2).any(|folder| folder.join("pyvenv.cfg").is_file())
}

/// What the interpreter needs, as far as it exists.
pub(super) fn needed(program: &Path, library: &Path, prefixes: &[PathBuf]) -> Vec<PathBuf> {
    let installed = prefixes.iter().flat_map(|prefix| INSTALLED.map(|part| prefix.join(part)));
    let own = [program.to_owned(), library.to_owned()].into_iter().chain(system::store_of(library));
    system::existing(system::LIBRARIES.iter().chain(&OF_MODULES).map(PathBuf::from).chain(installed).chain(own))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_parts_of_the_folder_that_python_is_installed_in_are_needed() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        for folder in ["bin", "lib/python3.12", "share/doc", "private"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("bin/python3.12"), "").unwrap();
        let needed = needed(&root.join("bin/python3.12"), &root.join("lib/python3.12"), &[root.clone(), root.clone()]);
        let own: Vec<_> = needed.iter().filter(|place| place.starts_with(&root)).collect();
        assert_eq!(own, [&root.join("bin"), &root.join("lib")]);
    }

    #[test]
    fn every_link_that_leads_to_the_program_is_needed() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        fs::create_dir_all(root.join("venv/bin")).unwrap();
        fs::write(root.join("venv/pyvenv.cfg"), "").unwrap();
        fs::write(root.join("real"), "").unwrap();
        symlink("real", root.join("alternative")).unwrap();
        symlink("../../alternative", root.join("venv/bin/python")).unwrap();
        let program = root.join("venv/bin/python");
        let needed = needed(&program, Path::new("/usr/lib"), &[root.join("venv")]);
        for place in ["alternative", "real", "venv/bin", "venv/pyvenv.cfg"] {
            assert!(needed.contains(&root.join(place)), "{place}: {needed:?}");
        }
        assert!(is_virtual(&program) && !is_virtual(&root.join("real")));
    }
}
