//! The selection of dead letters.

use toolbus_config::HumanDuration;
use toolbus_core::Clock;

use crate::dead_letters::Letter;

/// Which dead letters are meant: those to which every option applies.
#[derive(Debug, Default, clap::Args)]
pub(super) struct LetterFilter {
    /// Queue that they came from: `invoke`, `control`, `mcp`, `mcp-manage`, `mcp-refresh`, `script`, `results`, `tasks`,
    /// `subagent-report`, or its whole name; absent: every queue of the daemon.
    pub(super) queue: Option<String>,
    /// Message id, or call id; may be repeated.
    #[arg(long, value_name = "ID")]
    pub(super) id: Vec<String>,
    /// Reason for which they are dead: `malformed_request`, `unknown_type`, `reply_to_refused`, `undeliverable_answer`, or
    /// of the broker, such as `expired` and `delivery_limit`.
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
    /// Whether a letter is selected. A letter of unknown age is neither older nor newer than a time.
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
    fn a_letter_is_selected_if_every_option_applies() {
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
}
