//! The forms of what the rules for agents name.

use toolbus_config::expected;
use toolbus_core::caller::AgentName;
use toolbus_core::pattern::Pattern;
use toolbus_core::policy::Profile;
use toolbus_core::recipients::RecipientPath;

use super::{require, shortened};
use crate::config::agent::{DEFAULT_AGENT, UNKNOWN_AGENT};

/// Longest prefix of a tool set, in bytes.
const MAX_PREFIX: usize = 32;
/// Longest name of a channel or an account, in bytes.
const MAX_BINDING: usize = 64;

pub(super) fn pattern(text: &str) -> Result<(), String> {
    Pattern::parse(text).map(|_| ()).map_err(|error| format!("{:?} {error}", shortened(text)))
}

/// One agent by its name.
pub(super) fn agent(text: &str) -> Result<(), String> {
    agent_section(text)?;
    require(text != DEFAULT_AGENT, "stands for every agent without a section; expected the name of one agent")
}

/// One agent, or all that have no section.
pub(super) fn agent_section(text: &str) -> Result<(), String> {
    AgentName::parse(text).map_err(|error| format!("{:?} {error}", shortened(text)))?;
    require(text != UNKNOWN_AGENT, "no agent can have this name; callers without a section are `agents.default`")
}

pub(super) fn prefix(text: &str) -> Result<(), String> {
    let usual = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-');
    let fits = (1..=MAX_PREFIX).contains(&text.len()) && text.bytes().all(usual);
    let what = format!("{:?} is no prefix; expected 1 to {MAX_PREFIX} letters, digits, `_` or `-`", shortened(text));
    require(fits, &what)
}

pub(super) fn channel(text: &str) -> Result<(), String> {
    account(text)?;
    require(!text.contains(':'), "holds a colon, which ends the name of the channel in `channel:account`")
}

pub(super) fn account(text: &str) -> Result<(), String> {
    let fits = (1..=MAX_BINDING).contains(&text.len()) && !text.chars().any(char::is_control);
    require(fits, &format!("expected 1 to {MAX_BINDING} bytes of printable text"))
}

pub(super) fn profile(text: &str) -> Result<(), String> {
    let profiles = Profile::all();
    let names: Vec<&str> = profiles.iter().map(Profile::name).collect();
    let unknown = || format!("there is no profile {:?}; {}", shortened(text), expected(text, &names));
    if profiles.iter().any(|profile| profile.is_named(text)) { Ok(()) } else { Err(unknown()) }
}

pub(super) fn recipient_path(text: &str) -> Result<(), String> {
    RecipientPath::parse(text)
        .map(|_| ())
        .map_err(|error| format!("{:?} is no path to recipients; {error}", shortened(text)))
}
