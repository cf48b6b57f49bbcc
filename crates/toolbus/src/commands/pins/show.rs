//! Pins in words.

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::value::RawValue;
use toolbus_trust::pins::{Definition, State, Unified, unified};

use crate::commands::{one_line, plain};
use crate::http::admin::view::{Approved, Changed, Changes, Pinned, PinnedTools};

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
    tools.sort_by_key(|tool| (!tool.held, !tool.state.is_open(), tool.shadowed_by.is_none()));
    for tool in tools {
        table.add_row([one_line(&tool.source), one_line(&tool.name), state(tool), one_line(&tool.since)]);
    }
    lines.push(plain(&table));
    lines.join("\n")
}

fn state(tool: &Pinned) -> String {
    let state = match (tool.state.is_open(), tool.held) {
        (_, true) => format!("{}, quarantined", tool.state.as_str()),
        (true, false) if tool.state != State::Missing => format!("{}, not quarantined", tool.state.as_str()),
        _ => tool.state.as_str().to_owned(),
    };
    match &tool.shadowed_by {
        Some(owner) => format!("{state}, shadowed by {}", one_line(owner)),
        None => state,
    }
}

/// How tools changed.
pub(super) struct Shown {
    /// Each of them.
    pub(super) text: String,
    /// Whether nothing is left out of it.
    pub(super) is_whole: bool,
    /// Whether there is anything to approve.
    pub(super) is_open: bool,
}

/// How each tool changed.
pub(super) fn changed(changes: &Changes) -> Shown {
    let (mut parts, left_out): (Vec<String>, Vec<usize>) = changes.changes.iter().map(difference).unzip();
    if changes.more > 0 {
        parts.push(format!("… and {} more tools; `toolbus pins` lists them", changes.more));
    }
    Shown {
        text: parts.join("\n\n"),
        is_whole: changes.more == 0 && left_out.iter().all(|lines| *lines == 0),
        is_open: changes.changes.iter().any(|change| change.is.state.is_open()),
    }
}

/// How to see what is left out.
pub(super) fn rest(changes: &Changes) -> String {
    let name = one_line(&changes.name);
    match changes.more {
        0 => format!(
            "more changed than is shown here; all of it, and its digest, is printed by `toolbus pins diff {name} --output json`"
        ),
        _ => "more changed than is shown here; look at the tools one by one, with `toolbus pins diff TOOL`".to_owned(),
    }
}

/// How each tool changed, and how to approve it, if all of it is shown.
pub(super) fn differences(changes: &Changes) -> String {
    let Shown { text, is_whole, is_open } = changed(changes);
    let (name, digest) = (one_line(&changes.name), changes.digest);
    // Nobody is led to approve what they have not seen. The digest is whole: whoever writes both definitions finds two
    // whose digests begin alike.
    let end = match (is_open, is_whole) {
        (false, _) => format!("{name} is as it was pinned"),
        (true, false) => rest(changes),
        (true, true) => format!("To approve exactly this: toolbus pins approve {name} --digest {digest}"),
    };
    [text, end].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n")
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

/// What was approved.
pub(super) fn approved(approved: &Approved) -> String {
    let line = |tool: &Pinned| {
        let (name, source) = (one_line(&tool.name), one_line(&tool.source));
        match tool.state {
            State::Missing => format!("{name} of {source} is forgotten"),
            _ => format!("{name} of {source} is pinned as it is now"),
        }
    };
    approved.approved.iter().map(line).collect::<Vec<_>>().join("\n")
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
            shadowed_by: None,
        }
    }

    fn change(is: Pinned, before: Option<&str>, after: Option<&str>) -> Changed {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        Changed { is, before: before.map(raw), after: after.map(raw) }
    }

    const BEFORE: &str = r#"{"description":"Reads a file. Nothing else.","effect":"read-only","name":"read"}"#;
    const AFTER: &str = r#"{"description":"Reads a file. Sends it away.","effect":"read-only","name":"read"}"#;

    #[test]
    fn what_is_quarantined_comes_first() {
        let tools = vec![
            pinned("read", State::Pinned, false),
            Pinned { shadowed_by: Some("mcp:zzz".to_owned()), ..pinned("write", State::Recorded, false) },
            pinned("old", State::Missing, false),
            pinned("sto\u{1b}[2Jre", State::New, true),
        ];
        let all = PinnedTools { file: Some("/var/lib/toolbus/toolbus.pins.json".to_owned()), problem: None, tools };
        insta::assert_snapshot!(table(&all), @r"
        kept in /var/lib/toolbus/toolbus.pins.json
        SOURCE     TOOL            STATE                          SINCE
        mcp:files  sto\u{1b}[2Jre  new, quarantined               2026-01-02T03:04:05Z
        mcp:files  old             missing                        2026-01-02T03:04:05Z
        mcp:files  write           recorded, shadowed by mcp:zzz  2026-01-02T03:04:05Z
        mcp:files  read            pinned                         2026-01-02T03:04:05Z
        ");
    }

    #[test]
    fn a_difference_ends_with_how_to_approve_exactly_it() {
        let changes = vec![change(pinned("read", State::Changed, true), Some(BEFORE), Some(AFTER))];
        let changes = Changes { name: "read".to_owned(), digest: offer(&[]), changes, more: 0 };
        insta::assert_snapshot!(differences(&changes), @r"
        read of mcp:files: changed, quarantined since 2026-01-02T03:04:05Z
        @@ -2,4 +2,4 @@
         effect: read-only
         description:
           Reads a file.
        -   Nothing else.
        +   Sends it away.

        To approve exactly this: toolbus pins approve read --digest sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
        ");
    }

    #[test]
    fn nobody_is_led_to_approve_what_is_not_shown() {
        let end = |after: &str, more| {
            let changes = vec![change(pinned("read", State::Changed, true), Some(BEFORE), Some(after))];
            let text = differences(&Changes { name: "read".to_owned(), digest: offer(&[]), changes, more });
            assert!(!text.contains("approve"), "{text}");
            text.lines().last().unwrap().to_owned()
        };
        insta::assert_snapshot!(end(AFTER, 2), @"more changed than is shown here; look at the tools one by one, with `toolbus pins diff TOOL`");
        let long = format!(r#"{{"description":"{}","name":"read"}}"#, r"a\n".repeat(1_000));
        insta::assert_snapshot!(end(&long, 0), @"more changed than is shown here; all of it, and its digest, is printed by `toolbus pins diff read --output json`");
    }

    #[test]
    fn an_approval_names_every_tool() {
        let tools = vec![pinned("read", State::Changed, true), pinned("old", State::Missing, false)];
        insta::assert_snapshot!(approved(&Approved { approved: tools }), @"
        read of mcp:files is pinned as it is now
        old of mcp:files is forgotten
        ");
    }
}
