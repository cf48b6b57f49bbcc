//! Which dead letters are meant.

use toolbus_config::HumanDuration;
use toolbus_core::Clock;
use toolbus_protocol::{message_type, topic};

use super::letter::Letter;
use crate::config::Config;

/// Ends of the names of the queues that have dead letters.
pub(crate) const QUEUES: [&str; 9] =
    ["invoke", "control", "mcp", "mcp-manage", "mcp-refresh", "script", "results", "tasks", "subagent-report"];
/// End of the name of a queue of dead letters.
const DEAD: &str = ".dlq";

/// Which dead letters are meant: those to which every option applies.
#[derive(Debug, Default, clap::Args)]
pub(super) struct LetterFilter {
    /// Queue that they came from: `invoke`, `control`, `mcp`, `mcp-manage`, `mcp-refresh`, `script`, `results`, `tasks`,
    /// `subagent-report`, or its whole name; absent: every queue of the daemon.
    pub(super) queue: Option<String>,
    /// Message id, or call id; may be repeated.
    #[arg(long, value_name = "ID")]
    pub(super) id: Vec<String>,
    /// Why they are dead: `malformed_request`, `unknown_type`, `reply_to_refused`, `undeliverable_answer`, or of the broker,
    /// such as `expired` and `delivery_limit`.
    #[arg(long)]
    pub(super) reason: Option<String>,
    /// The agent that sent the request, as it calls itself.
    #[arg(long)]
    pub(super) agent: Option<String>,
    /// The tool that was asked for.
    #[arg(long)]
    pub(super) tool: Option<String>,
    /// Dead for longer than this, such as `1h`.
    #[arg(long, value_name = "TIME")]
    pub(super) older_than: Option<HumanDuration>,
    /// Dead for no longer than this.
    #[arg(long, value_name = "TIME")]
    pub(super) newer_than: Option<HumanDuration>,
    /// At most so many, the oldest ones.
    #[arg(long, value_name = "NUMBER")]
    pub(super) limit: Option<usize>,
}

impl LetterFilter {
    /// Whether a letter is meant. One whose age is not known is neither older nor newer than a time.
    pub(super) fn takes(&self, letter: &Letter) -> bool {
        let now = Clock::SYSTEM.since_epoch().as_secs();
        let age = letter.since.map(|since| now.saturating_sub(since));
        let is = |wanted: &Option<String>, found: Option<&str>| wanted.as_deref().is_none_or(|it| found == Some(it));
        let has_id = |id: &String| letter.id.as_ref() == Some(id) || letter.call_id.as_ref() == Some(id);
        (self.id.is_empty() || self.id.iter().any(has_id))
            && is(&self.reason, Some(&letter.reason))
            && is(&self.agent, letter.agent.as_deref())
            && is(&self.tool, letter.tool.as_deref())
            && self.older_than.is_none_or(|time| age.is_some_and(|age| age > time.get().as_secs()))
            && self.newer_than.is_none_or(|time| age.is_some_and(|age| age <= time.get().as_secs()))
    }
}

/// A queue whose dead letters are meant.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LetterQueue {
    /// Name of the queue.
    pub(super) queue: String,
    /// The topic of its requests, where all have the same.
    topic: Option<String>,
}

impl LetterQueue {
    /// The topic of a request that does not say on which it came.
    pub(super) fn topic_of(&self, letter: &Letter) -> Option<&str> {
        match letter.kind.as_deref() {
            Some(message_type::TOOL_LIST_REQUEST) => Some(topic::TOOL_LIST),
            Some(message_type::TOOL_HINTS_REQUEST) => Some(topic::TOOL_HINTS),
            Some(message_type::PING) => Some(topic::TOOL_PING),
            _ => self.topic.as_deref(),
        }
    }
}

/// The queues that are meant by this name, or all of the daemon's.
pub(super) fn letter_queues(config: &Config, named: Option<&str>) -> Result<Vec<LetterQueue>, String> {
    let prefix = config.queue_prefix();
    let letter_queue = |end: &str| {
        let topic = match end {
            "invoke" => config.invoke_topics().into_iter().find(|topic| !topic.contains(['*', '#'])),
            "mcp" => Some(topic::TOOL_INVOKE_MCP.to_owned()),
            "mcp-manage" => Some(topic::MCP_MANAGE.to_owned()),
            "mcp-refresh" => Some(topic::MCP_REFRESH.to_owned()),
            "script" => Some(topic::SCRIPT_INVOKE.to_owned()),
            "subagent-report" => Some(topic::SUBAGENT_REPORT.to_owned()),
            _ => None,
        };
        LetterQueue { queue: format!("{prefix}.{end}"), topic }
    };
    let Some(named) = named else { return Ok(QUEUES.map(letter_queue).into()) };
    let name = named.strip_suffix(DEAD).unwrap_or(named);
    let end = name.strip_prefix(&format!("{prefix}.")).unwrap_or(name);
    match QUEUES.iter().find(|queue| **queue == end) {
        Some(end) => Ok(vec![letter_queue(end)]),
        None if name.contains('.') => Ok(vec![LetterQueue { queue: name.to_owned(), topic: None }]),
        None => Err(format!("there is no queue '{named}'; expected one of {}, or a whole name", QUEUES.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter() -> Letter {
        Letter {
            queue: "toolbus.invoke".into(),
            id: Some("m1".into()),
            call_id: Some("call_1".into()),
            reason: "expired".into(),
            since: Some(Clock::SYSTEM.since_epoch().as_secs() - 90),
            agent: Some("ana".into()),
            tool: Some("pay".into()),
            ..Letter::default()
        }
    }

    #[test]
    fn a_letter_is_meant_if_every_option_applies() {
        let time = |text: &str| Some(text.parse().unwrap());
        let is_taken = |selection: LetterFilter| selection.takes(&letter());
        assert!(is_taken(LetterFilter::default()));
        assert!(is_taken(LetterFilter { id: vec!["other".into(), "call_1".into()], ..LetterFilter::default() }));
        assert!(!is_taken(LetterFilter { id: vec!["m".into()], ..LetterFilter::default() }));
        assert!(is_taken(LetterFilter {
            agent: Some("ana".into()),
            tool: Some("pay".into()),
            ..LetterFilter::default()
        }));
        assert!(!is_taken(LetterFilter {
            agent: Some("ana".into()),
            tool: Some("echo".into()),
            ..LetterFilter::default()
        }));
        assert!(!is_taken(LetterFilter { reason: Some("rejected".into()), ..LetterFilter::default() }));
        assert!(is_taken(LetterFilter { older_than: time("1m"), newer_than: time("1h"), ..LetterFilter::default() }));
        assert!(!is_taken(LetterFilter { older_than: time("1h"), ..LetterFilter::default() }));
        assert!(!is_taken(LetterFilter { newer_than: time("1m"), ..LetterFilter::default() }));
        let ageless = Letter { since: None, ..letter() };
        assert!(!LetterFilter { newer_than: time("1h"), ..LetterFilter::default() }.takes(&ageless));
    }

    #[test]
    fn a_queue_is_known_by_the_end_of_its_name_and_by_all_of_it() {
        let config = Config::default();
        for name in ["mcp", "toolbus.mcp", "toolbus.mcp.dlq"] {
            let letter_queue = LetterQueue { queue: "toolbus.mcp".into(), topic: Some("tool.invoke.mcp".into()) };
            assert_eq!(letter_queues(&config, Some(name)), Ok(vec![letter_queue]), "{name}");
        }
        let reports = LetterQueue { queue: "toolbus.subagent-report".into(), topic: Some("subagent.report".into()) };
        assert_eq!(letter_queues(&config, Some("subagent-report")), Ok(vec![reports]));
        let others = letter_queues(&config, Some("toolbus.ana.invoke.dlq")).unwrap();
        assert_eq!(others, [LetterQueue { queue: "toolbus.ana.invoke".into(), topic: None }]);
        assert_eq!(letter_queues(&config, None).map(|letter_queues| letter_queues.len()), Ok(QUEUES.len()));
        insta::assert_snapshot!(letter_queues(&config, Some("invok")).unwrap_err(), @"there is no queue 'invok'; expected one of invoke, control, mcp, mcp-manage, mcp-refresh, script, results, tasks, subagent-report, or a whole name");
    }
}
