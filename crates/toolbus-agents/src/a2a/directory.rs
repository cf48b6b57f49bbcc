//! The agents that are known: by the configuration, and by what they announce of themselves.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use toolbus_core::Clock;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::pattern::Pattern;
use toolbus_core::text::shortened;
use toolbus_outbound::headers::{parse_name, parse_value};
use toolbus_protocol::{AgentCard, AgentMessageBody as _, AgentSkill};
use url::Url;

use super::card::{MAX_NAME, bounded, is_address, read_file};
use super::config::{A2aConfig, WellKnownAgent};
use super::http::HttpAgent;

/// An agent that is known.
#[derive(Clone)]
pub(crate) struct KnownAgent {
    pub(crate) name: AgentName,
    /// The agent's own card, or the configured one.
    pub(crate) card: Arc<AgentCard>,
    /// Access to the agent over HTTP; `None`: the agent is reached over the bus.
    pub(crate) http: Option<Arc<HttpAgent>>,
    /// When it last announced itself, in seconds since 1970; `None` if it is known by the configuration alone.
    pub(crate) last_seen: Option<u64>,
    /// When it is forgotten.
    expires: Option<Instant>,
}

/// Which agents each agent may give tasks to.
#[derive(Debug, Clone)]
pub struct AllowedAgents {
    sections: BTreeMap<AgentName, Vec<Pattern>>,
    default: Vec<Pattern>,
    is_open: bool,
}

impl AllowedAgents {
    /// The lists of the sections, and that of callers without one; every agent may be given tasks where there are neither.
    #[must_use]
    pub fn new(sections: BTreeMap<AgentName, Vec<Pattern>>, default: Option<Vec<Pattern>>) -> Self {
        let is_open = sections.is_empty() && default.is_none();
        Self { sections, default: default.unwrap_or_default(), is_open }
    }

    /// Whether a caller may give tasks to an agent.
    #[must_use]
    pub fn allows(&self, caller: &Caller, agent: &str) -> bool {
        let list = caller.agent.as_ref().and_then(|name| self.sections.get(name)).unwrap_or(&self.default);
        self.is_open || list.iter().any(|pattern| pattern.matches(agent))
    }
}

/// Reason why the configured agents cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AgentsError {
    /// The file.
    #[error("a2a.agents_file: `{0}` cannot be read: {1}")]
    File(PathBuf, String),
    /// An agent.
    #[error("a2a: agent `{0}`: {1}")]
    Agent(String, String),
    /// TLS.
    #[error("a2a: no HTTP client can be made: {0}")]
    Client(String),
}

/// The agents that are known. Cheap to clone.
#[derive(Clone)]
pub struct AgentDirectory {
    /// By name in lower case.
    agents: Arc<Mutex<HashMap<String, KnownAgent>>>,
    /// Number of changes of what is known.
    changes: Arc<AtomicU64>,
    own_name: Arc<str>,
    ttl: Duration,
    max: usize,
    clock: Clock,
}

impl AgentDirectory {
    /// The agents of the configuration and of its file; `own_name` is the daemon's, whose announcements are ignored.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or an agent has settings that cannot work.
    pub fn new(config: &A2aConfig, own_name: &str, clock: Clock) -> Result<Self, AgentsError> {
        let mut agents = HashMap::new();
        let of_file = config
            .agents_file
            .as_deref()
            .map(|file| read_file(file).map_err(|error| AgentsError::File(file.to_owned(), error)));
        let of_file = of_file.transpose()?.unwrap_or_default();
        for agent in config.agents.iter().map(configured).chain(of_file.into_iter().map(of_card)) {
            let agent = agent?;
            let name = agent.name.to_string();
            if agents.insert(name.to_lowercase(), agent).is_some() {
                return Err(AgentsError::Agent(name, "there are two of this name".to_owned()));
            }
        }
        // Room for announcements comes on top.
        let max = agents.len() + config.max_agents;
        let (agents, changes) = (Arc::new(Mutex::new(agents)), Arc::default());
        Ok(Self { agents, changes, own_name: own_name.into(), ttl: config.ttl.get(), max, clock })
    }

    /// Takes an announcement; returns its outcome.
    pub(crate) fn announce(&self, sender: Option<&AgentName>, body: &[u8]) -> &'static str {
        let Ok(card) = AgentCard::parse(body) else { return "malformed" };
        let Some(name) = AgentName::parse(&card.agent_name).ok().filter(is_address) else { return "malformed" };
        if sender != Some(&name) || self.own_name.to_lowercase() == name.as_str().to_lowercase() {
            return "not_own";
        }
        let (now, key) = (self.clock.now(), name.as_str().to_lowercase());
        let mut agents = self.agents.lock();
        let is_live = |agent: &KnownAgent| agent.expires.is_none_or(|expires| expires > now);
        let known = agents.get(&key).filter(|agent| is_live(agent));
        match known {
            Some(known) if known.name != name => return "taken",
            Some(known) if known.expires.is_none() => {
                if let Some(known) = agents.get_mut(&key) {
                    known.last_seen = Some(self.clock.since_epoch().as_secs());
                }
                return "well_known";
            }
            Some(_) if card.is_deregistering => {
                agents.remove(&key);
                self.changes.fetch_add(1, Ordering::Release);
                return "left";
            }
            None if card.is_deregistering => return "left",
            _ => {}
        }
        let outcome = if known.is_some() { "known" } else { "new" };
        if outcome == "new" && agents.len() >= self.max {
            self.forget_expired(&mut agents);
            if agents.len() >= self.max {
                return "full";
            }
        }
        let card = Arc::new(bounded(card));
        // Agents announce themselves again and again, mostly with the same card.
        if agents.get(&key).is_none_or(|known| known.card != card || !is_live(known)) {
            self.changes.fetch_add(1, Ordering::Release);
        }
        let last_seen = Some(self.clock.since_epoch().as_secs());
        agents.insert(key, KnownAgent { name, card, http: None, last_seen, expires: Some(now + self.ttl) });
        outcome
    }

    /// The agent of a name, in any case.
    pub(crate) fn get(&self, name: &str) -> Option<KnownAgent> {
        let now = self.clock.now();
        let agent = self.agents.lock().get(&name.to_lowercase()).cloned();
        agent.filter(|agent| agent.expires.is_none_or(|expires| expires > now))
    }

    /// A number that changes whenever the cards of [`Self::list`] may be others.
    pub(crate) fn version(&self) -> u64 {
        let mut agents = self.agents.lock();
        self.forget_expired(&mut agents);
        let fetched = agents.values().filter_map(|agent| agent.http.as_ref()).map(|http| http.card_changes());
        // Agents with a URL are those of the configuration, which stay: neither summand becomes less.
        self.changes.load(Ordering::Acquire) + fetched.sum::<u64>()
    }

    fn forget_expired(&self, agents: &mut HashMap<String, KnownAgent>) {
        let (now, before) = (self.clock.now(), agents.len());
        agents.retain(|_, agent| agent.expires.is_none_or(|expires| expires > now));
        if agents.len() < before {
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Every agent that `is_visible`, by name.
    pub(crate) fn list(&self, is_visible: impl Fn(&str) -> bool) -> Vec<KnownAgent> {
        let mut agents = self.agents.lock();
        self.forget_expired(&mut agents);
        let visible = agents.values().filter(|agent| is_visible(agent.name.as_str()));
        let mut visible: Vec<KnownAgent> = visible.cloned().collect();
        drop(agents);
        visible.sort_by(|a, b| a.name.cmp(&b.name));
        visible
    }
}

impl KnownAgent {
    /// Returns the card of the agent: where the agent is reached over HTTP, its own card there fills in what the
    /// configuration leaves out.
    pub(crate) fn card(&self) -> AgentCard {
        let mut card = AgentCard::clone(&self.card);
        if let Some(own) = self.http.as_ref().and_then(|http| http.last_card()) {
            card.description = card.description.or_else(|| own.description.clone());
            card.version = card.version.or_else(|| own.version.clone());
            if card.skills.is_empty() {
                card.skills.clone_from(&own.skills);
            }
        }
        card
    }
}

fn configured(agent: &WellKnownAgent) -> Result<KnownAgent, AgentsError> {
    let problem = |what: String| AgentsError::Agent(agent.name.to_string(), what);
    let mut headers = HeaderMap::new();
    for (name, value) in &agent.headers {
        let name = parse_name(name).map_err(|error| problem(error.to_string()))?;
        let value = parse_value(&name, value.expose()).map_err(|error| problem(error.to_string()))?;
        headers.insert(name, value);
    }
    let skills = agent.skills.iter().map(|skill| AgentSkill {
        id: skill.id.clone(),
        name: skill.id.clone(),
        description: skill.description.clone(),
        tags: skill.tags.clone(),
        examples: Vec::new(),
    });
    let card = AgentCard {
        agent_name: agent.name.to_string(),
        description: agent.description.clone(),
        skills: skills.collect(),
        ..AgentCard::default()
    };
    well_known(agent.name.clone(), card, agent.url.as_deref(), headers)
}

fn well_known(
    name: AgentName,
    card: AgentCard,
    url: Option<&str>,
    headers: HeaderMap,
) -> Result<KnownAgent, AgentsError> {
    let problem = |what: &str| AgentsError::Agent(name.to_string(), what.to_owned());
    if !is_address(&name) {
        return Err(problem("the name is that of a topic; choose another"));
    }
    let http = match url {
        None if !headers.is_empty() => return Err(problem("headers are for an agent with a `url`")),
        None => None,
        Some(url) => {
            let url = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
            let url = url.ok_or_else(|| problem("the URL is none of http or https"))?;
            Some(Arc::new(HttpAgent::new(url, headers)))
        }
    };
    Ok(KnownAgent { name, card: Arc::new(bounded(card)), http, last_seen: None, expires: None })
}

/// An agent of a file.
fn of_card(card: AgentCard) -> Result<KnownAgent, AgentsError> {
    let problem = |what: &str| AgentsError::Agent(shortened(&card.agent_name, MAX_NAME).into_owned(), what.to_owned());
    let name = AgentName::parse(&card.agent_name).map_err(|error| problem(&error.to_string()))?;
    let mut headers = HeaderMap::new();
    if let Some(header) = &card.auth_header_name {
        let value = card.auth_header_value_base64.as_deref().unwrap_or_default();
        let value = STANDARD.decode(value).ok().and_then(|value| String::from_utf8(value).ok());
        let (header, value) = credential(header, value).ok_or_else(|| problem("its header cannot be sent"))?;
        headers.insert(header, value);
    }
    let url = card.url.clone();
    well_known(name, card, url.as_deref().filter(|url| !url.is_empty()), headers)
}

fn credential(name: &str, value: Option<String>) -> Option<(HeaderName, HeaderValue)> {
    let name = parse_name(name).ok()?;
    let value = parse_value(&name, &value?).ok()?;
    Some((name, value))
}

#[cfg(test)]
mod tests;
