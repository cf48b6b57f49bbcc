//! Records in the log and in the file: one line each, whatever texts they have and whatever the disk does.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use toolbus_core::failure::{Cause, Status};
use toolbus_protocol::Code;
use toolbus_testing::log::LogCapture;
use toolbus_testing::patience::eventually;

use super::file::tests::on_a_full_disk;
use super::*;
use crate::config::Secret;

const PATIENCE: Duration = Duration::from_secs(30);

fn record(call_id: &str) -> AuditRecord {
    AuditRecord {
        time_unix_ms: 0,
        event: AuditEvent::Refused,
        agent: Some("ana".to_owned()),
        claimed: None,
        login: Some("svc-ana".to_owned()),
        verified: true,
        binding: None,
        profile: None,
        session: None,
        tool: None,
        asked: Some("wether".to_owned()),
        source: None,
        call_id: Some(call_id.to_owned()),
        action: None,
        operator: None,
        remote: None,
        left_out: None,
        status: Status::Refused(Code::ToolNotFound),
        cause: Some(Cause::UnknownTool),
        outcome: Some(Outcome::NotStarted),
        arguments_hash: None,
    }
}

fn to_file(file: &Path) -> Arc<AuditLog> {
    AuditLog::open(&AuditConfig { file: Some(file.to_owned()), key: None }, &Default::default()).unwrap()
}

fn with_file(file: LogFile) -> AuditLog {
    AuditLog { keyed: Keyed::new(b"key"), writer: Some(Writer::start(file, Default::default()).unwrap()) }
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.jsonl");
    (folder, file)
}

fn call_ids(file: &Path) -> Vec<String> {
    let line = |line: &str| serde_json::from_str::<Value>(line).unwrap()["call_id"].as_str().unwrap().to_owned();
    fs::read_to_string(file).unwrap_or_default().lines().map(line).collect()
}

fn logged(speak: impl FnOnce()) -> String {
    let page = LogCapture::default();
    let layer = tracing_subscriber::fmt().with_writer(page.clone()).with_ansi(false).without_time().finish();
    tracing::subscriber::with_default(layer, speak);
    page.text()
}

#[tokio::test]
async fn a_record_is_a_line_of_the_log_and_a_line_of_the_file() {
    let (_folder, file) = folder();
    let audit = to_file(&file);
    let page = logged(|| audit.record(record("call_7")));
    insta::assert_snapshot!(page, @r#" INFO toolbus::audit: a call was refused event="refused" agent="ana" login="svc-ana" verified=true asked="wether" call_id="call_7" status="tool_not_found" cause="tool_not_found" outcome="not_started""#);
    audit.close(PATIENCE).await.unwrap();
    insta::assert_snapshot!(fs::read_to_string(&file).unwrap(), @r#"{"time_unix_ms":0,"event":"refused","agent":"ana","login":"svc-ana","verified":true,"asked":"wether","call_id":"call_7","status":"tool_not_found","cause":"tool_not_found","outcome":"not_started"}"#);
}

#[tokio::test]
async fn no_text_begins_a_line_in_the_log_or_in_the_file() {
    let (_folder, file) = folder();
    let audit = to_file(&file);
    let hostile = "x\r\n{\"event\":\"called\"}\n\u{1b}[2J\u{85}\0";
    let text = || Some(hostile.to_owned());
    let record = AuditRecord {
        agent: text(),
        claimed: text(),
        login: text(),
        binding: text(),
        profile: text(),
        session: text(),
        tool: Some(hostile.into()),
        asked: text(),
        action: text(),
        source: Some(hostile.into()),
        ..record(hostile)
    };
    let page = logged(|| audit.record(record));
    audit.close(PATIENCE).await.unwrap();
    let written = fs::read_to_string(&file).unwrap();
    for lines in [&page, &written] {
        assert_eq!(lines.chars().filter(|c| c.is_control() && *c != '\u{85}').collect::<String>(), "\n", "{lines:?}");
    }
    assert_eq!(call_ids(&file), [hostile]);
}

#[test]
fn without_a_file_there_is_the_log() {
    let audit = AuditLog::open(&AuditConfig::default(), &Default::default()).unwrap();
    assert!(logged(|| audit.record(record("call_7"))).contains("toolbus::audit: a call was refused"));
    audit.reopen();
}

#[test]
fn an_unusable_file_is_reported_with_its_name() {
    let config = AuditConfig { file: Some("/nonexistent/audit.jsonl".into()), key: None };
    insta::assert_snapshot!(AuditLog::open(&config, &Default::default()).err().unwrap(), @"[audit] the file `/nonexistent/audit.jsonl` cannot be used: its folder does not exist; create it, for the daemon's user alone");
}

#[test]
fn hashes_compare_between_runs_only_with_a_key() {
    let hash = |key: Option<&str>| {
        AuditLog::open(&AuditConfig { file: None, key: key.map(Secret::new) }, &Default::default())
            .unwrap()
            .hash(&Map::new())
    };
    assert!(hash(Some("one")).is_some());
    assert_eq!(hash(Some("one")), hash(Some("one")));
    assert_ne!(hash(Some("one")), hash(Some("two")));
    assert_ne!(hash(None), hash(None));
}

#[tokio::test]
async fn closing_writes_everything_in_order() {
    let (_folder, file) = folder();
    let audit = to_file(&file);
    let ids: Vec<String> = (0..5000).map(|number| number.to_string()).collect();
    ids.iter().for_each(|id| audit.record(record(id)));
    audit.close(PATIENCE).await.unwrap();
    assert_eq!(call_ids(&file), ids);
    audit.record(record("late"));
    assert_eq!(audit.close(PATIENCE).await, Ok(()), "closing again does nothing");
    assert_eq!(call_ids(&file), ids);
}

#[tokio::test]
async fn dropping_writes_everything_too() {
    let (_folder, file) = folder();
    let audit = to_file(&file);
    audit.record(record("1"));
    drop(audit);
    eventually("the record", async || (call_ids(&file) == ["1"]).then_some(())).await;
}

#[tokio::test]
async fn after_rotation_records_go_to_the_file_of_the_configured_name() {
    let (folder, file) = folder();
    let rotated = folder.path().join("audit.jsonl.1");
    let audit = to_file(&file);
    audit.record(record("1"));
    eventually("the record", async || (call_ids(&file) == ["1"]).then_some(())).await;
    fs::rename(&file, &rotated).unwrap();
    audit.record(record("2"));
    eventually("the record", async || (call_ids(&rotated) == ["1", "2"]).then_some(())).await;
    audit.reopen();
    audit.record(record("3"));
    audit.close(PATIENCE).await.unwrap();
    assert_eq!(call_ids(&file), ["3"]);
    assert_eq!(call_ids(&rotated), ["1", "2"]);
}

#[tokio::test]
async fn a_file_that_cannot_be_opened_anew_leaves_the_old_one_in_use() {
    let (folder, file) = folder();
    let rotated = folder.path().join("rotated");
    let audit = to_file(&file);
    fs::rename(&file, &rotated).unwrap();
    fs::create_dir(&file).unwrap();
    audit.reopen();
    audit.record(record("1"));
    eventually("the record", async || (call_ids(&rotated) == ["1"]).then_some(())).await;
    fs::remove_dir(&file).unwrap();
    audit.record(record("2"));
    audit.close(PATIENCE).await.unwrap();
    assert_eq!(call_ids(&file), ["2"]);
}

#[tokio::test]
async fn a_full_disk_loses_nothing_that_fits_the_queue() {
    let (_folder, file) = folder();
    let audit = with_file(on_a_full_disk(&file));
    audit.record(record("1"));
    audit.record(record("2"));
    assert_eq!(audit.close(Duration::from_millis(50)).await, Err(Unwritten));
    audit.reopen();
    eventually("the records", async || (call_ids(&file) == ["1", "2"]).then_some(())).await;
}

#[tokio::test]
async fn a_full_queue_blocks_no_caller_and_is_logged() {
    let (_folder, file) = folder();
    let audit = with_file(on_a_full_disk(&file));
    // More than the queue and the batch in hand have room for.
    let page = logged(|| (0..20_000).for_each(|number| audit.record(record(&number.to_string()))));
    let warnings = page.lines().filter(|line| line.contains("audit records are missing in their file")).count();
    assert_eq!(warnings, 1);
    assert_eq!(page.matches("a call was refused").count(), 20_000);
    audit.reopen();
    audit.close(PATIENCE).await.unwrap();
    let written = call_ids(&file);
    assert!(written.len() >= 16_384 && written.len() < 20_000, "{}", written.len());
    assert!(written.iter().enumerate().all(|(number, id)| *id == number.to_string()));
}

#[tokio::test]
async fn the_records_of_a_call_are_looked_up_by_its_id() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.jsonl");
    let log = to_file(&file);
    ["call-1", "call-2", "call-1"].into_iter().for_each(|call_id| log.record(record(call_id)));
    log.close(PATIENCE).await.unwrap();
    let text = fs::read_to_string(&file).unwrap();
    // Foreign lines, and more records than are shown.
    fs::write(&file, format!("no record\n{{}}\n{}", text.repeat(150))).unwrap();
    let found = records_of(&file, "call-1").unwrap();
    assert_eq!((found.len(), &found[0]["call_id"], &found[0]["asked"]), (200, &"call-1".into(), &"wether".into()));
    assert!(records_of(&file, "wether").unwrap().is_empty());
    assert!(records_of(&folder.path().join("absent"), "call-1").unwrap().is_empty());
    assert!(records_of(folder.path(), "call-1").unwrap_err().to_string().contains("no regular file"));
}
