//! What operators are told of texts that were cleaned, and of suspect ones.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use toolbus_core::tool::Suspicion;
use toolbus_trust::scan::Scanner;

use super::definition::Definitions;
use crate::client::ServerInfo;
use crate::status::{CleanedTexts, OF_SERVER, ServerStatus, SuspectTexts};

/// Most tools that the log names of one list, and most that a status names.
const MAX_LINES: usize = 20;
const MAX_TOLD: usize = 200;

/// All of a server that is suspect, and all that was cleaned: first what it says of itself, then its tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    suspect: Vec<SuspectTexts>,
    cleaned: Vec<CleanedTexts>,
}

impl Findings {
    pub(crate) fn new(about: &ServerInfo, definitions: &Definitions, scanner: &Scanner) -> Self {
        let suspect = |name: &str, suspicions: &[Suspicion]| {
            (!suspicions.is_empty()).then(|| SuspectTexts { name: name.to_owned(), suspicions: suspicions.to_vec() })
        };
        let of_server = suspect(OF_SERVER, &of_server(about, scanner));
        let of_tools = definitions.tools.iter().filter_map(|tool| suspect(&tool.name, &tool.suspicions));
        let removed = about.removed;
        let cleaned = (!removed.is_empty()).then(|| CleanedTexts { name: OF_SERVER.to_owned(), removed });
        Self {
            suspect: of_server.into_iter().chain(of_tools).collect(),
            cleaned: cleaned.into_iter().chain(definitions.cleaned.iter().cloned()).collect(),
        }
    }

    /// Tells the log what it was not told with `before`: a server that connects again with the same texts is no news.
    pub(crate) fn log(&self, server: &str, before: &Self) {
        let known: HashMap<&str, _> = before.suspect.iter().map(|texts| (&*texts.name, &texts.suspicions)).collect();
        let news = self.suspect.iter().filter(|texts| known.get(&*texts.name) != Some(&&texts.suspicions));
        let mut more = 0;
        for (number, SuspectTexts { name, suspicions }) in news.enumerate() {
            let Some(first) = suspicions.first().filter(|_| number < MAX_LINES) else {
                more += 1;
                continue;
            };
            tracing::warn!(
                server,
                tool = name,
                rule = &*first.rule,
                place = first.place,
                excerpt = first.excerpt,
                findings = suspicions.len(),
                "the definition of a tool is suspect: look at it before agents use it"
            );
        }
        if more > 0 {
            tracing::warn!(server, tools = more, "more definitions of tools are suspect");
        }
        let known: HashMap<&str, _> = before.cleaned.iter().map(|texts| (&*texts.name, texts.removed)).collect();
        let news = self.cleaned.iter().filter(|texts| known.get(&*texts.name) != Some(&texts.removed));
        let mut more = 0;
        for (number, CleanedTexts { name, removed }) in news.enumerate() {
            if number >= MAX_LINES {
                more += 1;
                continue;
            }
            tracing::warn!(
                server,
                tool = name,
                control = removed.control,
                bidirectional = removed.bidirectional,
                invisible = removed.invisible,
                cut_bytes = removed.cut,
                "texts of a tool were cleaned"
            );
        }
        if more > 0 {
            tracing::warn!(server, tools = more, "texts of more tools were cleaned");
        }
    }

    /// Puts all of it, or the beginning, into what is told of the server.
    pub(crate) fn tell(&self, status: &mut ServerStatus) {
        status.suspect_total = self.suspect.len();
        status.suspect = self.suspect.iter().take(MAX_TOLD).cloned().collect();
        status.cleaned_total = self.cleaned.len();
        status.cleaned = self.cleaned.iter().take(MAX_TOLD).cloned().collect();
    }
}

/// A server's own texts are in front of a model as well.
fn of_server(about: &ServerInfo, scanner: &Scanner) -> Arc<[Suspicion]> {
    let texts = [
        ("name", &about.name),
        ("title", &about.title),
        ("description", &about.description),
        ("instructions", &about.instructions),
    ];
    let texts: Vec<_> = texts.iter().filter_map(|(place, text)| Some((*place, text.as_deref()?))).collect();
    scanner.texts(&texts, &about.removed)
}
