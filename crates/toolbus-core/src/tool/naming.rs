//! How the tools of a source are called.

use std::collections::BTreeMap;
use std::sync::Arc;

/// From the names that a source has for its tools to those that they are published under, and back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Naming {
    /// Prefix of the tool set that the source backs; before a dot.
    pub set: Option<Arc<str>>,
    /// Prefix of the source's own; before an underscore.
    pub prefix: Option<Arc<str>>,
    /// Names that take the place of the source's own, by those; they get no `prefix`.
    pub renamed: BTreeMap<Arc<str>, Arc<str>>,
}

impl Naming {
    /// The name that a tool is published under.
    #[must_use]
    pub fn published(&self, own: &str) -> String {
        let set = self.set.iter().flat_map(|set| [&**set, "."]);
        let name: Vec<&str> = match (self.renamed.get(own), &self.prefix) {
            (Some(name), _) => vec![name],
            (None, Some(prefix)) => vec![prefix, "_", own],
            (None, None) => vec![own],
        };
        set.chain(name).collect()
    }

    /// The source's own name for the tool that would be published under this one; `None` if no tool of the source would be.
    #[must_use]
    pub fn own<'a>(&'a self, published: &'a str) -> Option<&'a str> {
        let name = match &self.set {
            Some(set) => published.strip_prefix(&**set)?.strip_prefix('.')?,
            None => published,
        };
        if let Some((own, _)) = self.renamed.iter().find(|(_, renamed)| ***renamed == *name) {
            return Some(own);
        }
        let own = match &self.prefix {
            Some(prefix) => name.strip_prefix(&**prefix)?.strip_prefix('_')?,
            None => name,
        };
        (!self.renamed.contains_key(own)).then_some(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naming(set: Option<&str>, prefix: Option<&str>) -> Naming {
        let renamed = [("read_file".into(), "open".into())].into();
        Naming { set: set.map(Arc::from), prefix: prefix.map(Arc::from), renamed }
    }

    #[test]
    fn a_name_is_found_again_by_what_it_is_published_under() {
        let table = [
            (None, None, "list", "list"),
            (None, None, "read_file", "open"),
            (None, Some("files"), "list", "files_list"),
            (None, Some("files"), "read_file", "open"),
            (Some("fs"), None, "list", "fs.list"),
            (Some("fs"), Some("files"), "list", "fs.files_list"),
            (Some("fs"), Some("files"), "read_file", "fs.open"),
        ];
        for (set, prefix, own, published) in table {
            let naming = naming(set, prefix);
            assert_eq!(naming.published(own), published);
            assert_eq!(naming.own(published), Some(own), "{published}");
        }
    }

    #[test]
    fn a_name_that_nothing_is_published_under_is_no_tools() {
        let table = [
            (None, None, "read_file"),
            (None, Some("files"), "list"),
            (None, Some("files"), "files_read_file"),
            (Some("fs"), None, "list"),
            (Some("fs"), None, "fslist"),
        ];
        for (set, prefix, published) in table {
            assert_eq!(naming(set, prefix).own(published), None, "{published}");
        }
    }
}
