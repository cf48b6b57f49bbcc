//! The packages that a script requests.

mod allowed;
mod error;
#[cfg(test)]
mod tests;
mod version;

use std::fmt;

use self::version::{RequirementCursor, Specifier};

pub use self::allowed::{AllowedError, AllowedPackages, NotAllowed};
pub use self::error::{RequirementError, RequirementsError};

/// Longest requirement, in bytes.
const MAX_LENGTH: usize = 200;
/// Most packages of one call.
pub const MAX_PACKAGES: usize = 20;

/// Suffixes of files that pip would take for a package.
const ARCHIVES: [&str; 12] =
    [".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz", ".txz", ".tar.lz", ".tlz", ".tar.lzma"];

/// A package and the versions of it that will do, normalised. It is safe as one argument of pip.
///
/// Names, extras and versions follow the [specification of dependency specifiers]. Options, URLs, paths and
/// environment markers are not.
///
/// [specification of dependency specifiers]: https://packaging.python.org/en/latest/specifications/dependency-specifiers/
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirement(String);

impl Requirement {
    /// Reads a requirement.
    ///
    /// # Errors
    ///
    /// If `text` is not a name with optional extras and versions. The messages are for the author of the requirement.
    pub fn parse(text: &str) -> Result<Self, RequirementError> {
        let trimmed = text.trim_matches(' ');
        error::foreign(text, trimmed)?;
        let cannot = |mistake| RequirementError::new(mistake, trimmed);
        let parts = RequirementParts::read(&mut RequirementCursor::new(trimmed)).map_err(cannot)?;
        let requirement = Self(parts.to_string());
        // A local version may end like this, and pip would look for a file.
        if ARCHIVES.iter().any(|ending| requirement.0.ends_with(ending)) {
            return Err(cannot(error::RequirementMistake::Path));
        }
        Ok(requirement)
    }

    /// Reads all requirements of one call. Equal ones are taken once.
    ///
    /// # Errors
    ///
    /// If one cannot be read, there are more than [`MAX_PACKAGES`], or two are of one package.
    pub fn parse_all<T: AsRef<str>>(texts: &[T]) -> Result<Vec<Self>, RequirementsError> {
        if texts.len() > MAX_PACKAGES {
            return Err(RequirementsError::TooMany(texts.len()));
        }
        let mut requirements: Vec<Self> = Vec::with_capacity(texts.len());
        for text in texts {
            let requirement = Self::parse(text.as_ref())?;
            match requirements.iter().find(|known| known.name() == requirement.name()) {
                Some(known) if *known == requirement => {}
                Some(known) => return Err(RequirementsError::Twice(known.clone(), requirement)),
                None => requirements.push(requirement),
            }
        }
        Ok(requirements)
    }

    /// The normalised text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The normalised name of the package.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.split(['[', '=', '!', '<', '>', '~']).next().unwrap_or_default()
    }

    /// Whether the requirement names one version, so that it leads to the same package at any time.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        let versions = self.versions();
        versions.starts_with("==") && !versions.contains([',', '*'])
    }

    /// Everything after the name and the extras.
    fn versions(&self) -> &str {
        self.0.find(['=', '!', '<', '>', '~']).and_then(|at| self.0.get(at..)).unwrap_or_default()
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Parts of a requirement, each normalised and in order, so that equal ones have equal texts.
struct RequirementParts {
    name: String,
    extras: Vec<String>,
    specifiers: Vec<Specifier>,
}

impl RequirementParts {
    fn read(from: &mut RequirementCursor<'_>) -> Result<Self, error::RequirementMistake> {
        let name = from.name().ok_or(error::RequirementMistake::Name)?;
        from.skip_spaces();
        let extras = if from.take("[") { extras(from).ok_or(error::RequirementMistake::Extras)? } else { Vec::new() };
        from.skip_spaces();
        let mut specifiers = Vec::new();
        while !from.is_at_end() {
            specifiers.push(Specifier::read(from)?);
            from.skip_spaces();
            if !from.take(",") {
                break;
            }
            from.skip_spaces();
            if from.is_at_end() {
                return Err(error::RequirementMistake::Operator);
            }
        }
        if !from.is_at_end() {
            return Err(error::RequirementMistake::Operator);
        }
        specifiers.sort();
        specifiers.dedup();
        Ok(Self { name, extras, specifiers })
    }
}

impl fmt::Display for RequirementParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if !self.extras.is_empty() {
            write!(f, "[{}]", self.extras.join(","))?;
        }
        for (position, specifier) in self.specifiers.iter().enumerate() {
            let comma = if position == 0 { "" } else { "," };
            write!(f, "{comma}{specifier}")?;
        }
        Ok(())
    }
}

/// The names up to the closing bracket.
fn extras(from: &mut RequirementCursor<'_>) -> Option<Vec<String>> {
    let mut extras = Vec::new();
    from.skip_spaces();
    while !from.take("]") {
        if !extras.is_empty() && !from.take(",") {
            return None;
        }
        from.skip_spaces();
        extras.push(from.name()?);
        from.skip_spaces();
    }
    extras.sort();
    extras.dedup();
    Some(extras)
}
