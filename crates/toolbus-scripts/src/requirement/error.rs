//! Reason why a string is no requirement, for its author.

use std::fmt;

use super::{ARCHIVES, MAX_LENGTH, MAX_PACKAGES, Requirement};

/// Longest part of a text that is repeated, in characters.
const MAX_SHOWN: usize = 60;

/// Reason why a text is no requirement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{shown} {mistake}")]
pub struct RequirementError {
    mistake: RequirementMistake,
    /// The beginning of the text, with everything escaped that cannot be shown.
    shown: String,
}

/// Fault of a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequirementMistake {
    Empty,
    TooLong,
    Characters,
    Option,
    Marker,
    Url,
    Path,
    Name,
    Extras,
    Operator,
    Arbitrary,
    Version,
    Wildcard,
    Compatible,
    Local,
}

impl fmt::Display for RequirementMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "is empty; give the name of a package",
            Self::TooLong => return write!(f, "is longer than {MAX_LENGTH} bytes, which no package needs"),
            Self::Characters => "has characters that no package has; use ASCII letters, digits and punctuation",
            Self::Option => "is an option of pip; give names and versions of packages alone",
            Self::Marker => "has an environment marker (`;`); leave it out",
            Self::Url => "is a URL; give the name of a package in the index instead",
            Self::Path => "is a path or a file; give the name of a package in the index instead",
            Self::Name => {
                "does not begin with the name of a package: letters, digits, and `-`, `_` or `.` between them"
            }
            Self::Extras => "has extras that cannot be read; write them as `name[extra,other]`",
            Self::Operator => {
                "has something after the name that is no version; write it as `name==1.2` or `name>=1,<2`"
            }
            Self::Arbitrary => "uses `===`, which is not supported; use `==`",
            Self::Version => "has a version that cannot be read; write it as `1.2.3`",
            Self::Wildcard => "uses `.*` in another way than `==1.2.*` or `!=1.2.*`",
            Self::Compatible => "uses `~=` with a version of one part; write it as `~=1.2`",
            Self::Local => "compares with a local version (`+`); only `==` and `!=` can",
        })
    }
}

impl RequirementError {
    pub(super) fn new(mistake: RequirementMistake, text: &str) -> Self {
        let mut shown: String = text.chars().take(MAX_SHOWN).flat_map(char::escape_default).collect();
        if text.chars().nth(MAX_SHOWN).is_some() {
            shown.push_str("...");
        }
        Self { mistake, shown: format!("`{shown}`") }
    }
}

/// Reason why texts are no requirements of one call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequirementsError {
    /// A text is no requirement.
    #[error("package {0}")]
    One(#[from] RequirementError),
    /// Too many.
    #[error("{0} packages are too many; a call may have {MAX_PACKAGES}")]
    TooMany(usize),
    /// Two requirements of one package differ.
    #[error("package `{name}` is asked for twice, as `{0}` and `{1}`; ask for it once", name = .0.name())]
    Twice(Requirement, Requirement),
}

/// Refuses what pip would not read as a package of its index.
pub(super) fn foreign(text: &str, trimmed: &str) -> Result<(), RequirementError> {
    let lower = trimmed.to_ascii_lowercase();
    let is_url = lower.contains(['@', ':']) || ["git+", "hg+", "svn+", "bzr+"].iter().any(|vcs| lower.starts_with(vcs));
    let is_archive = ARCHIVES.iter().any(|ending| lower.ends_with(ending));
    let is_path = lower.contains(['/', '\\']) || lower.starts_with(['.', '~']) || is_archive;
    let mistake = if text.len() > MAX_LENGTH {
        RequirementMistake::TooLong
    } else if text.bytes().any(|byte| !(b' '..=b'~').contains(&byte)) {
        RequirementMistake::Characters
    } else if trimmed.is_empty() {
        RequirementMistake::Empty
    } else if lower.starts_with('-') {
        RequirementMistake::Option
    } else if is_url {
        RequirementMistake::Url
    } else if lower.contains(';') {
        RequirementMistake::Marker
    } else if is_path {
        RequirementMistake::Path
    } else {
        return Ok(());
    };
    Err(RequirementError::new(mistake, trimmed))
}
