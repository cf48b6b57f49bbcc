//! Findings for operators: cleaned texts and suspect ones.

use std::collections::HashMap;
use std::sync::Arc;

use toolbus_core::tool::Suspicion;
use toolbus_trust::scan::Scanner;

use super::definition::Definitions;
use crate::client::ServerInfo;
use crate::status::{CleanedTexts, OF_SERVER, ServerStatus, SuspectTexts};

/// Most tools that the log names of one list, and most that a status names.
const MAX_LINES: usize = 20;
const MAX_REPORTED: usize = 200;

/// Suspect and cleaned texts of a server: first its own texts, then those of its tools.
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

    /// Logs the findings that are not in `before`, so that a reconnect with the same texts logs nothing.
    pub(crate) fn log(&self, server: &str, before: &Self) {
        let known: HashMap<&str, _> = before.suspect.iter().map(|texts| (&*texts.name, &texts.suspicions)).collect();
        let fresh = self.suspect.iter().filter(|texts| known.get(&*texts.name) != Some(&&texts.suspicions));
        let mut more = 0;
        for (number, SuspectTexts { name, suspicions }) in fresh.enumerate() {
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
        let fresh = self.cleaned.iter().filter(|texts| known.get(&*texts.name) != Some(&texts.removed));
        let mut more = 0;
        for (number, CleanedTexts { name, removed }) in fresh.enumerate() {
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

    /// Writes the first findings and their totals into the status.
    pub(crate) fn report(&self, status: &mut ServerStatus) {
        status.suspect_total = self.suspect.len();
        status.suspect = self.suspect.iter().take(MAX_REPORTED).cloned().collect();
        status.cleaned_total = self.cleaned.len();
        status.cleaned = self.cleaned.iter().take(MAX_REPORTED).cloned().collect();
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
    let texts: Vec<_> = texts.iter().filter_map(|(location, text)| Some((*location, text.as_deref()?))).collect();
    scanner.texts(&texts, &about.removed)
}

#[cfg(test)]
mod tests {
    use toolbus_testing::log::LogCapture;
    use toolbus_trust::text::Removed;

    use super::*;
    use crate::spec::{ServerSpec, TransportSpec};
    use crate::status::PhaseName;
    use crate::testing;

    fn suspect(name: &str, excerpt: &str) -> SuspectTexts {
        let suspicion =
            Suspicion { rule: "conceal".into(), place: "description".to_owned(), excerpt: excerpt.to_owned() };
        SuspectTexts { name: name.to_owned(), suspicions: vec![suspicion] }
    }

    fn cleaned(name: &str, invisible: usize) -> CleanedTexts {
        CleanedTexts { name: name.to_owned(), removed: Removed { invisible, ..Removed::default() } }
    }

    /// Returns the log of a change from `before` to `vetted`.
    fn logged(vetted: &Findings, before: &Findings) -> String {
        let page = LogCapture::default();
        let subscriber = tracing_subscriber::fmt()
            .without_time()
            .with_ansi(false)
            .with_target(false)
            .with_writer(page.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || vetted.log("files", before));
        page.text()
    }

    #[test]
    fn each_finding_is_logged_once_and_again_after_a_change() {
        let first =
            Findings { suspect: vec![suspect("add", "do not tell the user")], cleaned: vec![cleaned("add", 2)] };
        insta::assert_snapshot!(logged(&first, &Findings::default()), @r#"
    WARN the definition of a tool is suspect: look at it before agents use it server="files" tool="add" rule="conceal" place="description" excerpt="do not tell the user" findings=1
    WARN texts of a tool were cleaned server="files" tool="add" control=0 bidirectional=0 invisible=2 cut_bytes=0
    "#);
        assert_eq!(logged(&first, &first), "", "the same list again");
        let next = Findings {
            suspect: vec![suspect("add", "never tell the user"), suspect("sum", "do not tell the user")],
            cleaned: vec![cleaned("add", 2), cleaned("sum", 1)],
        };
        let lines = logged(&next, &first);
        assert_eq!(lines.lines().count(), 3, "{lines}");
        assert!(lines.contains("never tell the user") && !lines.contains("invisible=2"), "{lines}");
    }

    #[test]
    fn a_long_list_of_suspects_is_a_few_lines_and_a_few_names() {
        let many = Findings {
            suspect: (0..1_000).map(|number| suspect(&format!("t{number}"), "x")).collect(),
            cleaned: (0..1_000).map(|number| cleaned(&format!("t{number}"), 1)).collect(),
        };
        let lines = logged(&many, &Findings::default());
        assert_eq!(lines.lines().count(), 2 * (MAX_LINES + 1));
        assert_eq!(lines.lines().filter(|line| line.contains("tools=980")).count(), 2, "{lines}");
        let spec = ServerSpec::of_tests("files", TransportSpec::Stdio(testing::program("x", &[])));
        let mut status = ServerStatus::untried(&spec, PhaseName::Ready);
        many.report(&mut status);
        assert_eq!((status.suspect.len(), status.suspect_total), (MAX_REPORTED, 1_000));
        assert_eq!((status.cleaned.len(), status.cleaned_total), (MAX_REPORTED, 1_000));
    }
}
