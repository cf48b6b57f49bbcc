//! Hints for a prompt: services that fit a user's message.

use toolbus_core::HintSource;
use toolbus_core::caller::Caller;
use toolbus_core::policy::EffectiveTools;
use toolbus_core::text::shortened;

use super::{CallerSearch, SERVICES};

/// Services that are named.
const MAX_LINES: usize = 2;
/// Longest part of a line, in characters: a name, or a summary.
const MAX_PART: usize = 200;

impl HintSource for CallerSearch {
    fn hints(&self, caller: &Caller, effective: &EffectiveTools, text: &str) -> String {
        let Some(index) = self.services(caller, effective) else { return String::new() };
        let found = index.search(text, MAX_LINES);
        if found.is_empty() {
            return String::new();
        }
        let mut hints = String::from(match effective.get(SERVICES) {
            Some(_) => "Services that may fit this request (search_known_services finds others):",
            None => "Services that may fit this request:",
        });
        for one in found {
            let (service, summary) = (one.service, line(&one.service.summary));
            hints.push_str(&format!("\n- {} ({}): {summary}", line(&service.id), service.kind.as_str()));
            let parts: Vec<String> = one.top.iter().map(|name| line(name)).collect();
            if !parts.is_empty() {
                let named = if service.kind.is_agent() { "top skills" } else { "top tools" };
                hints.push_str(&format!(", {named}: {}", parts.join(", ")));
            }
        }
        hints
    }
}

/// A text in one line of bounded length: what others wrote begins no line of a prompt.
fn line(text: &str) -> String {
    let words: Vec<&str> =
        text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()).collect();
    shortened(&words.join(" "), MAX_PART).into_owned()
}
