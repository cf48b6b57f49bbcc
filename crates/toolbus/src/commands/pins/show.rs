//! Pins in words.

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::value::RawValue;
use toolbus_trust::pins::{Definition, State, Unified, unified};

use crate::commands::{one_line, plain};
use crate::http::admin::view::pins::{Approved, Changed, Changes, Pinned, PinnedTools};

/// Every tool in a line, those that need a look first.
pub(super) fn table(all: &PinnedTools) -> String {
    let mut lines = Vec::new();
    if let Some(problem) = &all.problem {
        lines.push(format!("pins are not kept: {}", one_line(problem)));
    }
    match &all.file {
        Some(file) => lines.push(format!("kept in {}", one_line(file))),
        None => lines.push("not kept in a file: forgotten with the process".to_owned()),
    }
    if all.tools.is_empty() {
        lines.push("no tool is pinned yet: what the daemon sees first is".to_owned());
        return lines.join("\n");
    }
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["SOURCE", "TOOL", "STATE", "SINCE"]);
    let mut tools: Vec<&Pinned> = all.tools.iter().collect();
    tools.sort_by_key(|tool| (!tool.held, !tool.state.is_open()));
    for tool in tools {
        table.add_row([one_line(&tool.source), one_line(&tool.name), state(tool), one_line(&tool.since)]);
    }
    lines.push(plain(&table));
    lines.join("\n")
}

fn state(tool: &Pinned) -> String {
    match (tool.state.is_open(), tool.held) {
        (_, true) => format!("{}, held back", tool.state.as_str()),
        (true, false) if tool.state != State::Missing => format!("{}, not held", tool.state.as_str()),
        _ => tool.state.as_str().to_owned(),
    }
}

/// How each tool changed, and how to let it through, if all of it is shown.
pub(super) fn differences(changes: &Changes) -> String {
    let (mut parts, left_out): (Vec<String>, Vec<usize>) = changes.changes.iter().map(difference).unzip();
    if changes.more > 0 {
        parts.push(format!("… and {} more tools; `toolbus pins` lists them", changes.more));
    }
    let is_open = changes.changes.iter().any(|change| change.is.state.is_open());
    let (name, digest) = (one_line(&changes.name), changes.digest);
    // Nobody is led to approve what they have not seen. The digest is whole: whoever writes both definitions finds two
    // whose digests begin alike.
    parts.push(if !is_open {
        format!("{name} is as it was pinned")
    } else if changes.more > 0 {
        "More changed than is shown here; look at the tools one by one: toolbus pins diff TOOL".to_owned()
    } else if left_out.iter().any(|lines| *lines > 0) {
        format!(
            "More changed than is shown here; all of it, and its digest, is printed by: toolbus pins diff {name} \
             --output json"
        )
    } else {
        format!("To let exactly this through: toolbus pins approve {name} --digest {digest}")
    });
    parts.join("\n\n")
}

/// How a tool changed, and how many lines of that are left out.
fn difference(change: &Changed) -> (String, usize) {
    let Pinned { source, name, since, reason, .. } = &change.is;
    let state = state(&change.is);
    let head = format!("{} of {}: {state} since {}", one_line(name), one_line(source), one_line(since));
    // What is suspect is as it was first seen, which is what is to be looked at.
    let before = change.before.as_deref().filter(|_| change.is.state != State::Suspect);
    let Unified { text, left_out } = unified(read(before).as_ref(), read(change.after.as_deref()).as_ref());
    let reason = reason.iter().filter(|_| change.is.state == State::Suspect).map(|reason| one_line(reason));
    let parts = [head].into_iter().chain(reason).chain((!text.is_empty()).then_some(text));
    (parts.collect::<Vec<_>>().join("\n"), left_out)
}

fn read(definition: Option<&RawValue>) -> Option<Definition> {
    serde_json::from_str(definition?.get()).ok()
}

/// What was let through, and how it changed unless that was looked at before.
pub(super) fn approved(changes: Option<&Changes>, approved: &Approved) -> String {
    let changes = changes.into_iter().flat_map(|changes| &changes.changes);
    let shown = changes.filter(|change| change.is.state.is_open()).map(|change| difference(change).0);
    let line = |tool: &Pinned| {
        let (name, source) = (one_line(&tool.name), one_line(&tool.source));
        match tool.state {
            State::Missing => format!("{name} of {source} is forgotten"),
            _ => format!("{name} of {source} is pinned as it is now"),
        }
    };
    shown.chain([approved.approved.iter().map(line).collect::<Vec<_>>().join("\n")]).collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use toolbus_trust::pins::offer;

    use super::*;

    fn pinned(tool: &str, state: State, held: bool) -> Pinned {
        Pinned {
            source: "mcp:files".to_owned(),
            tool: tool.to_owned(),
            name: tool.to_owned(),
            state,
            held,
            since: "2026-01-02T03:04:05Z".to_owned(),
            reason: None,
        }
    }

    fn changed(is: Pinned, before: Option<&str>, after: Option<&str>) -> Changed {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        Changed { is, before: before.map(raw), after: after.map(raw) }
    }

    const BEFORE: &str = r#"{"description":"Reads a file. Nothing else.","effect":"read-only","name":"read"}"#;
    const AFTER: &str = r#"{"description":"Reads a file. Sends it away.","effect":"read-only","name":"read"}"#;

    #[test]
    fn what_is_held_back_comes_first() {
        let tools = vec![
            pinned("read", State::Pinned, false),
            pinned("old", State::Missing, false),
            pinned("sto\u{1b}[2Jre", State::New, true),
        ];
        let all = PinnedTools { file: Some("/etc/toolbus.pins.json".to_owned()), problem: None, tools };
        insta::assert_snapshot!(table(&all), @r"
        kept in /etc/toolbus.pins.json
        SOURCE     TOOL            STATE           SINCE
        mcp:files  sto\u{1b}[2Jre  new, held back  2026-01-02T03:04:05Z
        mcp:files  old             missing         2026-01-02T03:04:05Z
        mcp:files  read            pinned          2026-01-02T03:04:05Z
        ");
    }

    #[test]
    fn a_difference_ends_with_how_to_let_exactly_it_through() {
        let changes = vec![changed(pinned("read", State::Changed, true), Some(BEFORE), Some(AFTER))];
        let changes = Changes { name: "read".to_owned(), digest: offer(&[]), changes, more: 0 };
        insta::assert_snapshot!(differences(&changes), @r"
        read of mcp:files: changed, held back since 2026-01-02T03:04:05Z
        @@ -2,4 +2,4 @@
         effect: read-only
         description:
           Reads a file.
        -   Nothing else.
        +   Sends it away.

        To let exactly this through: toolbus pins approve read --digest sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
        ");
    }

    #[test]
    fn nobody_is_led_to_approve_what_is_not_shown() {
        let end = |after: &str, more| {
            let changes = vec![changed(pinned("read", State::Changed, true), Some(BEFORE), Some(after))];
            let text = differences(&Changes { name: "read".to_owned(), digest: offer(&[]), changes, more });
            assert!(!text.contains("approve"), "{text}");
            text.lines().last().unwrap().to_owned()
        };
        insta::assert_snapshot!(end(AFTER, 2), @"More changed than is shown here; look at the tools one by one: toolbus pins diff TOOL");
        let long = format!(r#"{{"description":"{}","name":"read"}}"#, r"a\n".repeat(1_000));
        insta::assert_snapshot!(end(&long, 0), @"More changed than is shown here; all of it, and its digest, is printed by: toolbus pins diff read --output json");
    }

    #[test]
    fn an_approval_shows_what_it_was_of() {
        let is = pinned("read", State::Changed, true);
        let changes = vec![changed(is.clone(), Some(BEFORE), Some(AFTER))];
        let changes = Changes { name: "read".to_owned(), digest: offer(&[]), changes, more: 0 };
        let text = approved(Some(&changes), &Approved { approved: vec![is, pinned("old", State::Missing, false)] });
        assert!(text.contains("+   Sends it away."), "{text}");
        assert!(text.ends_with("read of mcp:files is pinned as it is now\nold of mcp:files is forgotten"), "{text}");
    }
}
