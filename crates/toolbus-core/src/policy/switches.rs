//! Tools, agents and sources that an operator has switched off, for now.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::tool::ToolDescriptor;

/// Most things that can be switched off at a time.
const MAX_SWITCHES: usize = 10_000;
/// Longest name, in bytes.
const MAX_NAME: usize = 255;

/// Something that can be switched off.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Switch {
    /// One tool, by its published name or by the one that its source knows it by.
    Tool(Arc<str>),
    /// One agent: it sees and calls nothing. `default` is all callers without a section.
    Agent(Arc<str>),
    /// Every tool of one source.
    Source(Arc<str>),
}

/// Reason why something cannot be switched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    /// Not a kind of thing that there is.
    #[error("only a tool, an agent or a source can be switched off")]
    Kind,
    /// A name that nothing has.
    #[error("the name must have 1 to {MAX_NAME} bytes and no control character")]
    Name,
    /// Too many already.
    #[error("{MAX_SWITCHES} things are switched off already; enable some of them first")]
    TooMany,
}

/// Everything that is switched off.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Switches(BTreeSet<Switch>);

impl Switch {
    /// A switch of this kind: `tool`, `agent` or `source`.
    ///
    /// # Errors
    ///
    /// If the kind is unknown, or nothing of this kind can have this name.
    pub fn new(kind: &str, name: &str) -> Result<Self, SwitchError> {
        if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
            return Err(SwitchError::Name);
        }
        match kind {
            "tool" => Ok(Self::Tool(name.into())),
            "agent" => Ok(Self::Agent(name.into())),
            "source" => Ok(Self::Source(name.into())),
            _ => Err(SwitchError::Kind),
        }
    }

    /// `tool`, `agent` or `source`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Tool(_) => "tool",
            Self::Agent(_) => "agent",
            Self::Source(_) => "source",
        }
    }

    /// Name of the tool, agent or source.
    #[must_use]
    pub const fn name(&self) -> &Arc<str> {
        let (Self::Tool(name) | Self::Agent(name) | Self::Source(name)) = self;
        name
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind(), self.name())
    }
}

impl FromStr for Switch {
    type Err = SwitchError;

    fn from_str(text: &str) -> Result<Self, SwitchError> {
        let (kind, name) = text.split_once(' ').ok_or(SwitchError::Kind)?;
        Self::new(kind, name)
    }
}

impl Switches {
    /// Switches something off; false when it was off already.
    pub(crate) fn disable(&mut self, switch: Switch) -> Result<bool, SwitchError> {
        if self.0.len() >= MAX_SWITCHES && !self.0.contains(&switch) {
            return Err(SwitchError::TooMany);
        }
        Ok(self.0.insert(switch))
    }

    /// Switches something on again; false when it was not off.
    pub(crate) fn enable(&mut self, switch: &Switch) -> bool {
        self.0.remove(switch)
    }

    pub(crate) fn list(&self) -> Vec<Switch> {
        self.0.iter().cloned().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The switch that takes this tool away, if any does. As in lists that deny, a name is the published one or the
    /// source's own, so that a prefix that is added later switches nothing on.
    pub(crate) fn of_tool(&self, tool: &ToolDescriptor) -> Option<Switch> {
        let names = [&tool.name, tool.bare_name()].map(|name| Switch::Tool(Arc::clone(name)));
        let source = Switch::Source(Arc::clone(&tool.source));
        names.into_iter().chain([source]).find(|switch| self.0.contains(switch))
    }

    pub(crate) fn has_source(&self, source: &Arc<str>) -> bool {
        self.0.contains(&Switch::Source(Arc::clone(source)))
    }

    pub(crate) fn has_agent(&self, name: &str) -> bool {
        !self.0.is_empty() && self.0.contains(&Switch::Agent(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_written_as_it_is_read() {
        for text in ["tool fs.read file", "agent ana", "source mcp:fs"] {
            assert_eq!(text.parse::<Switch>().unwrap().to_string(), text);
        }
        for (text, error) in
            [("tool", SwitchError::Kind), ("agents ana", SwitchError::Kind), ("tool ", SwitchError::Name)]
        {
            assert_eq!(text.parse::<Switch>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn switches_are_bounded_in_number() {
        let mut switches = Switches::default();
        for n in 0..MAX_SWITCHES {
            assert_eq!(switches.disable(Switch::Tool(format!("t{n}").into())), Ok(true));
        }
        assert_eq!(switches.disable(Switch::Tool("t0".into())), Ok(false));
        assert_eq!(switches.disable(Switch::Tool("one more".into())), Err(SwitchError::TooMany));
    }
}
