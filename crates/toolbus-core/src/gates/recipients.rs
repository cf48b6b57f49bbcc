//! Whom a call may address: the one gate between the arguments of a call and the tools that send something to people.

mod compare;
mod declared;
mod layout;
mod path;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

pub use self::compare::Compare;
use self::declared::Declaration;
pub use self::declared::{declared, may_read_as};
use self::layout::{Layout, LayoutRefusal};
use self::path::Found;
pub use self::path::{RecipientPath, RecipientPathError};
use crate::pattern::Pattern;
use crate::text::shown;

/// Paths that a refusal names.
const MAX_NAMED: usize = 3;

/// Tools that address people on one channel, and where in their arguments the recipients stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbound {
    /// The channel, such as `whatsapp`.
    pub channel: Arc<str>,
    /// The tools.
    pub tools: Vec<Pattern>,
    /// Paths in their arguments that can hold a recipient.
    pub recipients: Vec<RecipientPath>,
    /// Comparison of a recipient with a list.
    pub compare: Compare,
}

/// The recipients that a caller may address on one channel. An empty list allows none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedRecipients {
    compare: Compare,
    /// In the form in which they are compared.
    listed: HashSet<Box<str>>,
}

/// A text in a list of recipients that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no recipient; expected {}", shown(.text), .compare.expected())]
pub struct RecipientError {
    text: String,
    compare: Compare,
}

/// Reason why a call may not address a recipient. Its text is for the caller, and reveals nothing about the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecipientRefusal {
    channel: Arc<str>,
    reason: Reason,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Reason {
    /// One recipient, and not one that is allowed.
    NotListed(RecipientPath),
    /// Not exactly one recipient.
    Unreadable(RecipientPath, Compare),
    /// No recipient at any of these paths.
    NoRecipient(Vec<RecipientPath>),
    /// An argument, or a field beside a recipient, that neither the tool's schema nor the policy declares.
    Undeclared(String),
}

impl Outbound {
    /// Whether this argument is one in which recipients stand.
    #[must_use]
    pub fn reads(&self, argument: &str) -> bool {
        self.recipients.iter().any(|path| path.argument() == argument)
    }

    /// Whether a tool addresses people here: under its published name, or under its own within a tool set. A prefix is
    /// no way around.
    #[must_use]
    pub fn is_for(&self, published: &str, bare: &str) -> bool {
        self.tools.iter().any(|pattern| pattern.matches(published) || pattern.matches(bare))
    }
}

impl AllowedRecipients {
    /// Number of recipients that are listed.
    pub(crate) fn count(&self) -> usize {
        self.listed.len()
    }

    /// The recipients of a list, compared in this way.
    ///
    /// # Errors
    ///
    /// If an entry of the list is not exactly one recipient.
    pub fn new<T: AsRef<str>>(compare: Compare, list: &[T]) -> Result<Self, RecipientError> {
        let listed = list.iter().map(|text| {
            let text = text.as_ref();
            let normalised =
                compare.normalised(text).ok_or_else(|| RecipientError { text: text.to_owned(), compare })?;
            Ok(normalised.into())
        });
        Ok(Self { compare, listed: listed.collect::<Result<_, _>>()? })
    }

    /// Checks that the arguments name a recipient, and none that is not in the list. An object in which recipients
    /// stand, such as an element of a list, names one itself, and has no field that the tool's schema does not declare.
    ///
    /// # Errors
    ///
    /// If the recipients are refused: the reason, for the caller.
    fn check(
        &self,
        outbound: &Outbound,
        declaration: Option<&Declaration<'_>>,
        arguments: &Map<String, Value>,
    ) -> Result<(), RecipientRefusal> {
        let refused = |reason| RecipientRefusal { channel: Arc::clone(&outbound.channel), reason };
        let mut has_recipient = false;
        for path in &outbound.recipients {
            path.visit(arguments, &mut |found| {
                has_recipient = true;
                self.allows(found, path).map_err(refused)
            })?;
        }
        if !has_recipient {
            return Err(refused(Reason::NoRecipient(outbound.recipients.clone())));
        }
        for (argument, value) in arguments.iter().filter(|(argument, _)| outbound.reads(argument)) {
            let paths = || outbound.recipients.iter().filter(|path| path.argument() == argument);
            let steps: Vec<_> = paths().map(RecipientPath::steps).collect();
            let layout = Layout::new(&steps, declaration.map(|declaration| declaration.field(argument)).as_ref());
            layout.check(value).map_err(|refusal| match refusal {
                LayoutRefusal::NoRecipient => refused(Reason::NoRecipient(paths().cloned().collect())),
                LayoutRefusal::Undeclared(name) => refused(Reason::Undeclared(name.to_owned())),
            })?;
        }
        Ok(())
    }

    fn allows(&self, found: Found<'_>, path: &RecipientPath) -> Result<(), Reason> {
        let text = match found {
            Found::Text(text) => Cow::Borrowed(text),
            // Tools that take numbers for ids take the same digits in a text.
            Found::Integer(number) => Cow::Owned(number.to_string()),
            Found::Other => return Err(Reason::Unreadable(path.clone(), self.compare)),
        };
        match self.compare.normalised(&text) {
            Some(recipient) if self.listed.contains(&*recipient) => Ok(()),
            Some(_) => Err(Reason::NotListed(path.clone())),
            None => Err(Reason::Unreadable(path.clone(), self.compare)),
        }
    }
}

/// Checks that a call may address the recipients in its arguments on this channel. Arguments that neither the tool's
/// schema nor the policy declares are refused: no schema guarantees that they hold no recipient. `is_forced`: the
/// arguments that the policy sets.
///
/// # Errors
///
/// What the caller receives.
pub(super) fn check(
    outbound: &Outbound,
    allowed: &AllowedRecipients,
    parameters: Option<&Value>,
    is_forced: impl Fn(&str) -> bool,
    arguments: &Map<String, Value>,
) -> Result<(), RecipientRefusal> {
    let declaration = parameters.map(Declaration::of);
    let declared = declaration.as_ref().map(Declaration::names).unwrap_or_default();
    let is_known = |name: &String| declared.contains(name.as_str()) || outbound.reads(name) || is_forced(name);
    if let Some(name) = arguments.keys().find(|name| !is_known(name)) {
        let reason = Reason::Undeclared(name.clone());
        return Err(RecipientRefusal { channel: Arc::clone(&outbound.channel), reason });
    }
    allowed.check(outbound, declaration.as_ref(), arguments)
}

impl fmt::Display for RecipientRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let channel = shown(&self.channel);
        match &self.reason {
            Reason::NotListed(path) => {
                write!(
                    f,
                    "The recipient at '{path}' is not in the list of those that this agent may address on {channel}."
                )
            }
            Reason::Unreadable(path, compare) => write!(
                f,
                "The value at '{path}' cannot be compared with the list of those that this agent may address on {channel}: \
                 expected {}.",
                compare.expected()
            ),
            Reason::NoRecipient(paths) => {
                write!(f, "The call names no recipient on {channel}: expected one at ")?;
                for (number, path) in paths.iter().take(MAX_NAMED).enumerate() {
                    write!(f, "{}'{path}'", if number == 0 { "" } else { " or " })?;
                }
                f.write_str(if paths.len() > MAX_NAMED { " or elsewhere." } else { "." })
            }
            Reason::Undeclared(name) => write!(
                f,
                "The tool's parameters do not declare `{}`, which might name a recipient. Leave it out.",
                shown(name)
            ),
        }
    }
}

#[cfg(test)]
mod tests;
