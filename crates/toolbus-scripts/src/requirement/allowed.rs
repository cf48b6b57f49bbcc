//! The packages that an operator allows.

use std::collections::BTreeMap;

use super::{Requirement, RequirementError};

/// Entry that allows every package.
const ANY: &str = "*";
/// Most names that a refusal lists.
const MAX_LISTED: usize = 20;

/// The packages that scripts may request. Their own dependencies come with them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowedPackages {
    is_any: bool,
    /// By name.
    packages: BTreeMap<String, Requirement>,
}

/// Fault of an operator's list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllowedError {
    /// An entry is no requirement.
    #[error("{0}")]
    Entry(#[from] RequirementError),
    /// An entry has extras: they are the script's to choose.
    #[error("`{0}` has extras; leave them out, a script may ask for any")]
    Extras(Requirement),
    /// A package has two entries.
    #[error("`{0}` is listed twice")]
    Twice(String),
}

/// A package that is not on the list. The text is for the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("package '{name}' is not allowed here; {allowed}")]
pub struct NotAllowed {
    /// Name of the package.
    pub name: String,
    allowed: String,
}

impl AllowedPackages {
    /// Reads a list: names, names with versions, or `*` for every package. None allows none.
    ///
    /// # Errors
    ///
    /// An error for each wrong entry, with its position.
    pub fn parse<T: AsRef<str>>(entries: &[T]) -> Result<Self, Vec<(usize, AllowedError)>> {
        let (mut allowed, mut mistakes) = (Self::default(), Vec::new());
        for (position, entry) in entries.iter().enumerate() {
            if let Err(mistake) = allowed.add(entry.as_ref()) {
                mistakes.push((position, mistake));
            }
        }
        if mistakes.is_empty() { Ok(allowed) } else { Err(mistakes) }
    }

    fn add(&mut self, entry: &str) -> Result<(), AllowedError> {
        if entry.trim() == ANY {
            self.is_any = true;
            return Ok(());
        }
        let requirement = Requirement::parse(entry)?;
        if requirement.as_str().contains('[') {
            return Err(AllowedError::Extras(requirement));
        }
        let name = requirement.name().to_owned();
        match self.packages.insert(name.clone(), requirement) {
            None => Ok(()),
            Some(_) => Err(AllowedError::Twice(name)),
        }
    }

    /// Whether no package is allowed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.is_any && self.packages.is_empty()
    }

    /// Whether a script may request a package of this name.
    pub(crate) fn allows(&self, name: &str) -> bool {
        Requirement::parse(name).is_ok_and(|requested| self.narrowed(&requested).is_ok())
    }

    /// The requested packages in order, each narrowed to the allowed versions.
    ///
    /// # Errors
    ///
    /// If one is not on the list.
    pub fn admit(&self, requested: &[Requirement]) -> Result<Vec<Requirement>, NotAllowed> {
        let mut admitted = requested.iter().map(|one| self.narrowed(one)).collect::<Result<Vec<_>, _>>()?;
        admitted.sort();
        Ok(admitted)
    }

    fn narrowed(&self, requested: &Requirement) -> Result<Requirement, NotAllowed> {
        match self.packages.get(requested.name()) {
            Some(allowed) if allowed.versions().is_empty() => Ok(requested.clone()),
            Some(allowed) => Ok(requested.and(allowed)),
            None if self.is_any => Ok(requested.clone()),
            None => Err(NotAllowed { name: requested.name().to_owned(), allowed: self.listed() }),
        }
    }

    /// The allowed packages, for a message.
    pub(crate) fn listed(&self) -> String {
        if self.is_any {
            return "any is allowed".to_owned();
        }
        let names: Vec<&str> = self.packages.values().map(Requirement::as_str).take(MAX_LISTED).collect();
        let more = self.packages.len() - names.len();
        match (names.is_empty(), more) {
            (true, _) => "no packages can be installed".to_owned(),
            (false, 0) => format!("allowed are: {}", names.join(", ")),
            (false, more) => format!("allowed are: {} and {more} more", names.join(", ")),
        }
    }
}

impl Requirement {
    /// This package in the versions that both allow.
    fn and(&self, other: &Self) -> Self {
        let (own, others) = (self.versions(), other.versions());
        let mut specifiers: Vec<&str> = own.split(',').chain(others.split(',')).filter(|one| !one.is_empty()).collect();
        specifiers.sort_unstable();
        specifiers.dedup();
        let head = self.0.strip_suffix(own).unwrap_or(&self.0);
        Self(format!("{head}{}", specifiers.join(",")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(entries: &[&str]) -> AllowedPackages {
        AllowedPackages::parse(entries).unwrap()
    }

    fn requested(texts: &[&str]) -> Vec<Requirement> {
        Requirement::parse_all(texts).unwrap()
    }

    #[test]
    fn a_request_is_narrowed_to_the_allowed_versions() {
        let list = allowed(&["NumPy", "requests==2.31.0", "foo>=1,<2"]);
        let table = [
            ("numpy", "numpy"),
            ("Numpy>=1.2", "numpy>=1.2"),
            ("requests", "requests==2.31.0"),
            ("requests==2.31.0", "requests==2.31.0"),
            ("requests[socks]", "requests[socks]==2.31.0"),
            ("foo!=1.5", "foo!=1.5,<2,>=1"),
        ];
        for (text, expected) in table {
            assert_eq!(list.admit(&requested(&[text])).unwrap()[0].as_str(), expected, "{text}");
        }
    }

    #[test]
    fn the_order_of_requested_packages_does_not_matter() {
        let list = allowed(&["*"]);
        assert_eq!(list.admit(&requested(&["b", "a"])), list.admit(&requested(&["a", "b"])));
    }

    #[test]
    fn a_refusal_lists_the_allowed_packages() {
        let refused = |entries: &[&str]| allowed(entries).admit(&requested(&["evil"])).unwrap_err().to_string();
        insta::assert_snapshot!(refused(&[]), @"package 'evil' is not allowed here; no packages can be installed");
        insta::assert_snapshot!(refused(&["numpy", "requests==2.31.0"]), @"package 'evil' is not allowed here; allowed are: numpy, requests==2.31.0");
        let many: Vec<String> = (100..200).map(|number| format!("package-{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let text = refused(&many);
        assert!(text.ends_with(", package-119 and 80 more") && text.len() < 400, "{text}");
    }

    #[test]
    fn a_name_is_allowed_as_a_whole() {
        let list = allowed(&["requests"]);
        assert!(list.admit(&requested(&["requests-evil"])).is_err());
        assert!(list.admit(&requested(&["request"])).is_err());
    }

    #[test]
    fn a_star_allows_any_package_and_keeps_the_versions_of_listed_ones() {
        let list = allowed(&["*", "requests==2.31.0"]);
        assert!(!list.is_empty() && allowed(&[]).is_empty());
        let admitted = list.admit(&requested(&["requests", "evil"])).unwrap();
        assert_eq!(admitted, requested(&["evil", "requests==2.31.0"]));
    }

    #[test]
    fn every_mistake_in_the_list_is_reported() {
        let mistakes = AllowedPackages::parse(&["ok", "-e .", "ok", "a[b]"]).unwrap_err();
        let texts: Vec<String> = mistakes.iter().map(|(position, mistake)| format!("{position}: {mistake}")).collect();
        insta::assert_snapshot!(texts.join("\n"), @"
        1: `-e .` is an option of pip; give names and versions of packages alone
        2: `ok` is listed twice
        3: `a[b]` has extras; leave them out, a script may ask for any
        ");
    }
}
