//! All that is known of one server.

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use toolbus_core::tool::Suspicion;
use toolbus_mcp_client::status::{HiddenTool, ServerStatus};

use super::latency;
use crate::commands::{one_line, plain};

pub(super) fn in_full(server: &ServerStatus) -> String {
    let mut parts = vec![format!("{}: {}", one_line(&server.name), server.phase.as_str()), facts(server)];
    if !server.tools.is_empty() {
        parts.push(titled("tools", &server.tools));
    }
    parts.extend(shadowed(server));
    parts.extend(hidden(&server.hidden));
    parts.extend(suspect(server));
    parts.extend(cleaned(server));
    parts.extend(stderr(&server.stderr));
    parts.join("\n\n")
}

/// Table of the server's known facts.
fn facts(server: &ServerStatus) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    let mut add = |what: &str, text: Option<String>| {
        if let Some(text) = text {
            table.add_row([what, &one_line(&text)]);
        }
    };
    add("last error", server.last_error.clone());
    add("transport", Some(server.transport.clone()));
    add("protocol", server.protocol_version.clone());
    add("server", server.implementation.clone());
    add("origin", Some(server.origin.clone()));
    add("tool set", server.toolset.clone());
    add("sessions", (server.sessions > 0).then(|| server.sessions.to_string()));
    add("process", server.pid.map(|pid| pid.to_string()));
    add("ready for", server.ready_seconds.map(in_words));
    add("restarts", Some(server.restarts.to_string()));
    add("calls", Some(format!("{} running", server.in_flight)));
    add("latency", server.latency_us.map(|_| latency(server)));
    plain(&table)
}

/// A time in its largest unit.
fn in_words(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// The tools that are called by this server alone, and how that can be changed.
fn shadowed(server: &ServerStatus) -> Option<String> {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["SHADOWED TOOL", "THE NAME BELONGS TO"]);
    for tool in &server.shadowed {
        table.add_row([one_line(&tool.name), one_line(&tool.owner)]);
    }
    let more = and_more(server.shadowed_total, server.shadowed.len(), "shadowed");
    let hint = "called by this server alone; give it a `prefix`, or `rename` the tools, to have them called by name";
    (!server.shadowed.is_empty()).then(|| format!("{}{more}\n{hint}", plain(&table)))
}

/// The tools that are not offered, and why.
pub(super) fn hidden(tools: &[HiddenTool]) -> Option<String> {
    if tools.is_empty() {
        return None;
    }
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["HIDDEN TOOL", "WHY"]);
    for tool in tools {
        table.add_row([one_line(&tool.name), one_line(&tool.reason)]);
    }
    Some(plain(&table))
}

/// The tools that are suspect, and why.
pub(super) fn suspect(server: &ServerStatus) -> Option<String> {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["SUSPECT TOOL", "RULE", "PLACE", "WHAT IT SAYS"]);
    for texts in &server.suspect {
        for Suspicion { rule, place, excerpt } in &texts.suspicions {
            table.add_row([&*texts.name, rule, place, excerpt].map(one_line));
        }
    }
    let more = and_more(server.suspect_total, server.suspect.len(), "suspect");
    (!server.suspect.is_empty()).then(|| format!("{}{more}", plain(&table)))
}

/// The tools whose texts were cleaned, and the removed characters.
pub(super) fn cleaned(server: &ServerStatus) -> Option<String> {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["CLEANED TOOL", "REMOVED"]);
    for texts in &server.cleaned {
        table.add_row([one_line(&texts.name), texts.removed.to_string()]);
    }
    let more = and_more(server.cleaned_total, server.cleaned.len(), "cleaned");
    (!server.cleaned.is_empty()).then(|| format!("{}{more}", plain(&table)))
}

fn and_more(total: usize, shown: usize, what: &str) -> String {
    match total.saturating_sub(shown) {
        0 => String::new(),
        more => format!("\nand {more} more are {what}"),
    }
}

/// The last lines that a server wrote to its standard error.
pub(super) fn stderr(lines: &[String]) -> Option<String> {
    (!lines.is_empty()).then(|| titled("standard error, its end", lines))
}

fn titled(title: &str, lines: &[String]) -> String {
    let lines = lines.iter().map(|line| format!("  {}", one_line(line)));
    std::iter::once(format!("{title}:")).chain(lines).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use toolbus_mcp_client::status::{CleanedTexts, OF_SERVER, PhaseName, ShadowedTool, SuspectTexts};
    use toolbus_trust::text::Removed;

    use super::*;
    use crate::http::tests::example;

    #[test]
    fn a_server_is_shown_with_its_visible_and_hidden_tools() {
        insta::assert_snapshot!(in_full(&example("files")), @r#"
        files: ready

        transport  stdio
        protocol   2025-11-25
        server     example 1.0
        origin     configuration
        process    4242
        ready for  62 min
        restarts   0
        calls      1 running
        latency    1.2 ms

        tools:
          read_file
          write_file

        HIDDEN TOOL  WHY
        move_file    denied by deniedTools

        standard error, its end:
          listening
        "#);
    }

    #[test]
    fn a_server_is_shown_with_suspect_and_cleaned_texts() {
        let suspicion = Suspicion {
            rule: "conceal".into(),
            place: "parameters.properties.a".to_owned(),
            excerpt: "do not tell\u{9b} the user".to_owned(),
        };
        let suspect = vec![SuspectTexts { name: "read_file".to_owned(), suspicions: vec![suspicion] }];
        let removed = Removed { invisible: 2, cut: 30, ..Removed::default() };
        let cleaned = vec![CleanedTexts { name: OF_SERVER.to_owned(), removed }];
        let server = ServerStatus { suspect, suspect_total: 1, cleaned, cleaned_total: 4, ..example("files") };
        insta::assert_snapshot!([super::suspect(&server), super::cleaned(&server)].map(Option::unwrap).join("\n\n"), @r#"
        SUSPECT TOOL  RULE     PLACE                    WHAT IT SAYS
        read_file     conceal  parameters.properties.a  do not tell\u{9b} the user

        CLEANED TOOL  REMOVED
        (server)      2 invisible characters, 30 bytes cut
        and 3 more are cleaned
        "#);
        let shown = in_full(&server);
        assert!(shown.contains("SUSPECT TOOL") && shown.contains("CLEANED TOOL"), "{shown}");
    }

    #[test]
    fn a_server_is_shown_with_its_shadowed_tools() {
        let shadowed = vec![ShadowedTool { name: "read_file".to_owned(), owner: "mcp:zzz".to_owned() }];
        let server = ServerStatus { shadowed, shadowed_total: 3, ..example("aaa") };
        insta::assert_snapshot!(super::shadowed(&server).unwrap(), @r"
        SHADOWED TOOL  THE NAME BELONGS TO
        read_file      mcp:zzz
        and 2 more are shadowed
        called by this server alone; give it a `prefix`, or `rename` the tools, to have them called by name
        ");
        assert!(in_full(&server).contains("SHADOWED TOOL"));
    }

    #[test]
    fn a_time_is_shown_in_its_largest_unit() {
        assert_eq!([119, 7_199, 172_799, 172_800].map(in_words), ["119 s", "119 min", "47 h", "2 days"]);
    }

    #[test]
    fn a_server_that_never_served_is_shown_with_its_error_and_its_last_words() {
        let server = ServerStatus {
            phase: PhaseName::Parked,
            last_error: Some("the server ended with exit code 3".to_owned()),
            protocol_version: None,
            implementation: None,
            tools: Vec::new(),
            hidden: Vec::new(),
            pid: None,
            restarts: 5,
            ready_seconds: None,
            in_flight: 0,
            latency_us: None,
            stderr: vec!["Traceback".to_owned(), "\u{1b}[31mno such module\u{7}".to_owned()],
            origin: "registration".to_owned(),
            toolset: Some("files".to_owned()),
            sessions: 2,
            ..example("files")
        };
        insta::assert_snapshot!(in_full(&server), @r#"
        files: parked

        last error  the server ended with exit code 3
        transport   stdio
        origin      registration
        tool set    files
        sessions    2
        restarts    5
        calls       0 running

        standard error, its end:
          Traceback
          \u{1b}[31mno such module\u{7}
        "#);
    }
}
