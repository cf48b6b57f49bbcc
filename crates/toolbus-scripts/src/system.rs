//! Paths that programs of this system must be able to read to run at all.

use std::fs;
use std::path::{Path, PathBuf};

/// Paths that every program needs: the libraries it is linked to, and the local time zone.
pub(crate) const LIBRARIES: [&str; 9] = [
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/share/zoneinfo",
    "/etc/ld.so.cache",
    "/etc/localtime",
];

/// Installed programs that start others, and the files that these read.
pub(crate) const PROGRAMS: [&str; 9] =
    ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime"];

/// Files that a program needs to find others by their names, and to trust them.
pub(crate) const NETWORK: [&str; 10] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
];

/// Where everything is kept that one system's programs are linked to.
const STORES: [&str; 2] = ["/nix/store", "/gnu/store"];

/// Most links that lead from one to another: the kernel's own bound.
const MAX_LINKS: usize = 40;

/// The store that a file is in, if any.
pub(crate) fn store_of(file: &Path) -> Option<PathBuf> {
    STORES.iter().map(Path::new).find(|store| file.starts_with(store)).map(Path::to_owned)
}

/// Those of these absolute paths that exist, each with the targets of its links, without paths below another.
pub(crate) fn existing(paths: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    let absolute = paths.into_iter().filter(|path| path.is_absolute());
    let mut found: Vec<PathBuf> = absolute.flat_map(|path| links(&path)).filter(|path| path.exists()).collect();
    found.sort();
    // Sorted by their parts, a folder comes before what is in it.
    found.dedup_by(|later, earlier| later.starts_with(earlier));
    found
}

/// A file, and every file that it leads to by being a link.
pub(crate) fn links(file: &Path) -> Vec<PathBuf> {
    let mut found = vec![file.to_owned()];
    let mut at = file.to_owned();
    while let Ok(target) = fs::read_link(&at) {
        at = without_steps(&at.parent().unwrap_or(Path::new("/")).join(target));
        found.push(at.clone());
        if found.len() > MAX_LINKS {
            break;
        }
    }
    found.extend(fs::canonicalize(file));
    found
}

/// A path whose folder has no links and no `..`, so that it can be compared with others.
fn without_steps(path: &Path) -> PathBuf {
    let folder = path.parent().and_then(|folder| fs::canonicalize(folder).ok());
    folder.zip(path.file_name()).map_or_else(|| path.to_owned(), |(folder, name)| folder.join(name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_in_a_circle_come_to_an_end() {
        let root = tempfile::tempdir().unwrap();
        symlink("b", root.path().join("a")).unwrap();
        symlink("a", root.path().join("b")).unwrap();
        assert!(links(&root.path().join("a")).len() <= MAX_LINKS + 2);
    }

    #[test]
    fn only_what_exists_is_listed_and_nothing_twice() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("c"), "").unwrap();
        symlink("c", root.join("link")).unwrap();
        let paths = ["link", "a/b", "a", "a-b", "missing"].map(|name| root.join(name));
        let relative = PathBuf::from(".");
        assert_eq!(existing(paths.into_iter().chain([relative])), ["a", "c", "link"].map(|name| root.join(name)));
        assert_eq!(store_of(Path::new("/nix/store/x/bin/y")), Some(PathBuf::from("/nix/store")));
    }
}
