//! Profiles: what a role of an agent may use. In code, because they are a boundary and no preference.

use std::borrow::Cow;
use std::collections::BTreeSet;

/// A role: a rule about the names and sources of tools that narrows what an agent may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    name: Cow<'static, str>,
    allowed_sources: BTreeSet<Cow<'static, str>>,
    denied_sources: BTreeSet<Cow<'static, str>>,
    allowed_names: BTreeSet<Cow<'static, str>>,
    denied_names: BTreeSet<Cow<'static, str>>,
}

/// Stands for every source in [`Profile::allowing_source`].
pub const EVERY_SOURCE: &str = "*";

/// Decision of a profile on one tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileRole {
    /// The tool may be used.
    Allowed,
    /// The tool's name is denied.
    DeniedName,
    /// The tool's source is denied.
    DeniedSource,
    /// Neither its name nor its source is allowed.
    NotAllowed,
}

/// Whether two names mean one profile. Case, hyphens and underscores do not count: agents write `A2ASynthesis`, too.
pub(crate) fn is_same_name(one: &str, other: &str) -> bool {
    let letters = |name: &str| {
        name.bytes().filter(|byte| !b"-_".contains(byte)).map(|byte| byte.to_ascii_lowercase()).collect::<Vec<_>>()
    };
    one == other || letters(one) == letters(other)
}

impl Profile {
    /// A profile that allows nothing.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name: Cow::Borrowed(name),
            allowed_sources: BTreeSet::new(),
            denied_sources: BTreeSet::new(),
            allowed_names: BTreeSet::new(),
            denied_names: BTreeSet::new(),
        }
    }

    /// Profile of an agent that talks with people, and of every request that names none.
    #[must_use]
    pub fn main() -> Self {
        Self::new("main").allowing_source(EVERY_SOURCE)
    }

    /// Profile of an agent that another agent began: no agents of its own, no changes to schedules and servers.
    #[must_use]
    pub fn subagent() -> Self {
        Self::main().named("subagent").denying_source("subagent").denying_names([
            "cancel_scheduled_task",
            "mcp_register_server",
            "mcp_unregister_server",
        ])
    }

    /// Profile of a run that a schedule began.
    #[must_use]
    pub fn scheduled() -> Self {
        Self::main()
            .named("scheduled")
            .denying_source("subagent")
            .denying_names(["mcp_register_server", "mcp_unregister_server"])
    }

    /// Profile of an agent that puts the replies of others together: it calls no further ones.
    #[must_use]
    pub fn a2a_synthesis() -> Self {
        Self::main().named("a2a-synthesis").denying_source("a2a")
    }

    /// Every named profile.
    #[must_use]
    pub fn all() -> Vec<Self> {
        vec![Self::main(), Self::subagent(), Self::scheduled(), Self::a2a_synthesis()]
    }

    /// Name of the profile, as requests give it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a request means it by this name.
    #[must_use]
    pub fn is_named(&self, name: &str) -> bool {
        is_same_name(&self.name, name)
    }

    /// A copy of another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = name.into();
        self
    }

    /// A copy that also allows this source; [`EVERY_SOURCE`] for all.
    #[must_use]
    pub fn allowing_source(mut self, source: impl Into<Cow<'static, str>>) -> Self {
        self.allowed_sources.insert(source.into());
        self
    }

    /// A copy that denies this source, whatever else allows it.
    #[must_use]
    pub fn denying_source(mut self, source: impl Into<Cow<'static, str>>) -> Self {
        self.denied_sources.insert(source.into());
        self
    }

    /// A copy that also allows these tools, of whatever source.
    #[must_use]
    pub fn allowing_names<N: Into<Cow<'static, str>>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.allowed_names.extend(names.into_iter().map(Into::into));
        self
    }

    /// A copy that denies these tools, whatever else allows them.
    #[must_use]
    pub fn denying_names<N: Into<Cow<'static, str>>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.denied_names.extend(names.into_iter().map(Into::into));
        self
    }

    /// Whether the profile may allow a tool of this source, by the source or by some name.
    #[must_use]
    pub(super) fn could_allow(&self, source: &str) -> bool {
        let is_allowed = self.allowed_sources.contains(EVERY_SOURCE) || self.allowed_sources.contains(source);
        !self.denied_sources.contains(source) && (is_allowed || !self.allowed_names.is_empty())
    }

    /// Decides on a tool of a published name, of a name within its tool set, and of a source. A name is denied under
    /// either: a prefix is no way around.
    #[must_use]
    pub fn judge(&self, published: &str, bare: &str, source: &str) -> ProfileRole {
        if self.denied_names.contains(published) || self.denied_names.contains(bare) {
            ProfileRole::DeniedName
        } else if self.denied_sources.contains(source) {
            ProfileRole::DeniedSource
        } else if self.allowed_names.contains(published)
            || self.allowed_sources.contains(EVERY_SOURCE)
            || self.allowed_sources.contains(source)
        {
            ProfileRole::Allowed
        } else {
            ProfileRole::NotAllowed
        }
    }
}
