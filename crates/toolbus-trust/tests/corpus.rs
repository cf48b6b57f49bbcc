//! Accuracy with which the scan distinguishes poisoned definitions from others.
//!
//! `corpus/benign.jsonl` and `corpus/poisoned.jsonl` are what the rules were made with. `corpus/held-….jsonl` were
//! written before there was any rule, and no rule was changed for them: their figures are the ones to believe. The figures
//! here are exact, so that a rule that changes one in either direction is noticed; `docs/trust.md` lists them.

#![expect(clippy::unwrap_used, reason = "a corpus that cannot be read should fail")]

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use toolbus_core::tool::{Suspicion, ToolDescriptor};
use toolbus_trust::scan::Scanner;
use toolbus_trust::vet;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    id: String,
    kind: String,
    name: String,
    title: Option<String>,
    description: String,
    parameters: Option<Value>,
    output_schema: Option<Value>,
}

struct Figures {
    entries: usize,
    suspect: usize,
    /// Ids of those that were judged wrongly, with the rules that were met.
    wrong: Vec<String>,
}

fn suspicions(entry: &Entry, scanner: &Scanner) -> Arc<[Suspicion]> {
    let mut tool = ToolDescriptor {
        title: entry.title.clone(),
        description: entry.description.clone(),
        parameters: entry.parameters.clone().map(Arc::new),
        output_schema: entry.output_schema.clone().map(Arc::new),
        ..ToolDescriptor::new(&*entry.name, "mcp:corpus", "mcp")
    };
    vet(&mut tool, scanner);
    tool.suspicions
}

fn judge(file: &str, should_be_suspect: bool) -> Figures {
    let scanner = Scanner::new().unwrap();
    let text = std::fs::read_to_string(format!("{}/corpus/{file}.jsonl", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let entries: Vec<Entry> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (mut suspect, mut wrong) = (0, Vec::new());
    for entry in &entries {
        let found = suspicions(entry, &scanner);
        suspect += usize::from(!found.is_empty());
        if found.is_empty() == should_be_suspect {
            let rules: Vec<&str> = found.iter().map(|suspicion| &*suspicion.rule).collect();
            wrong.push(format!("{} {}: {}", entry.kind, entry.id, rules.join(", ")).trim_end_matches(": ").to_owned());
        }
    }
    Figures { entries: entries.len(), suspect, wrong }
}

fn report(figures: &Figures) -> String {
    format!("{} of {} suspect; wrong: {:#?}", figures.suspect, figures.entries, figures.wrong)
}

#[test]
fn benign_definitions_that_rules_were_made_with() {
    insta::assert_snapshot!(report(&judge("benign", false)), @r#"
    1 of 131 suspect; wrong: [
        "security injection-corpus: override",
    ]
    "#);
}

#[test]
fn poisoned_definitions_that_rules_were_made_with() {
    insta::assert_snapshot!(report(&judge("poisoned", true)), @r#"
    87 of 88 suspect; wrong: [
        "imitation assistant-turn",
    ]
    "#);
}

#[test]
fn benign_definitions_that_no_rule_was_made_with() {
    insta::assert_snapshot!(report(&judge("held-benign", false)), @r#"
    2 of 62 suspect; wrong: [
        "security prompt-check: override, conversation",
        "ops long-operations: conceal",
    ]
    "#);
}

#[test]
fn poisoned_definitions_that_no_rule_was_made_with() {
    insta::assert_snapshot!(report(&judge("held-poisoned", true)), @r#"
    23 of 36 suspect; wrong: [
        "shadow trivia-rewires-chat",
        "shadow formatter-copies-everything",
        "schema enum-carries-order",
        "schema required-reasoning-field",
        "override new-policy",
        "override forget-earlier",
        "beacon image-beacon",
        "beacon link-with-secrets",
        "preference advert",
        "language german",
        "shadow cross-tool-transfer",
        "persistence memory-plant",
        "override urgent-ceo",
    ]
    "#);
}
