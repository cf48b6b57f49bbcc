//! Cards of agents, kept within bounds, and read from a file.

use std::fs;
use std::path::Path;

use serde_json::value::RawValue;
use toolbus_core::caller::AgentName;
use toolbus_core::text::shortened;
use toolbus_protocol::{AgentCard, AgentMessageBody as _, AgentSkill};

/// Longest file of agents, in bytes.
const MAX_FILE: u64 = 1024 * 1024;
/// Bounds of what a card keeps: skills, tags or examples of one, and characters of a text and of a name.
pub(crate) const MAX_SKILLS: usize = 50;
pub(crate) const MAX_WORDS: usize = 20;
pub(crate) const MAX_TEXT: usize = 1000;
pub(crate) const MAX_NAME: usize = 100;

/// Whether an agent of this name can have a topic of its own: `agent.task.status` and `agent.task.cancel.…` are others'.
pub(crate) fn is_address(name: &AgentName) -> bool {
    let name = name.as_str();
    name != "status" && name != "cancel" && !name.starts_with("cancel.")
}

/// A card without what is too long, and without the agent's address: that is for an operator to configure.
pub(crate) fn bounded(card: AgentCard) -> AgentCard {
    let text = |text: &str, max| shortened(text, max).into_owned();
    let words = |words: Vec<String>| words.iter().take(MAX_WORDS).map(|word| text(word, MAX_TEXT)).collect();
    let skills = card.skills.into_iter().take(MAX_SKILLS).map(|skill| AgentSkill {
        id: text(&skill.id, MAX_NAME),
        name: text(&skill.name, MAX_NAME),
        description: skill.description.map(|description| text(&description, MAX_TEXT)),
        tags: words(skill.tags),
        examples: words(skill.examples),
    });
    AgentCard {
        agent_name: card.agent_name,
        description: card.description.map(|description| text(&description, MAX_TEXT)),
        version: card.version.map(|version| text(&version, MAX_NAME)),
        skills: skills.collect(),
        ..AgentCard::default()
    }
}

/// The cards of a file: a JSON array of them.
pub(crate) fn read_file(file: &Path) -> Result<Vec<AgentCard>, String> {
    let length = fs::metadata(file).map_err(|error| error.to_string())?.len();
    if length > MAX_FILE {
        return Err(format!("it has more than {MAX_FILE} bytes"));
    }
    let text = fs::read(file).map_err(|error| error.to_string())?;
    let cards: Vec<Box<RawValue>> =
        serde_json::from_slice(&text).map_err(|error| format!("it is no list of agents: {error}"))?;
    let read = |card: Box<RawValue>| AgentCard::parse(card.get().as_bytes());
    cards.into_iter().map(read).collect::<Result<_, _>>().map_err(|error| error.to_string())
}
