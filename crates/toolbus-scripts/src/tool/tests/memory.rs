//! Entries of working memory as files of scripts.

use toolbus_core::store::StoreError;
use toolbus_memory::usage::MemoryUsage;
use toolbus_memory::working_memory::{
    EntryInfo, EntryKey, KeyPrefix, MemoryEntry, MemoryError, MemoryLimits, MemoryOwner, NewEntry, SearchHit,
    SearchQuery, WorkingMemory,
};
use toolbus_sandbox::Artifact;
use toolbus_store::VolatileMemory;

use super::*;

const MEMORY: MemoryLimits = MemoryLimits {
    max_value: 1 << 20,
    max_entries_per_namespace: 4,
    max_entries: 100,
    max_size: 64 << 20,
    max_total_size: 64 << 20,
};

/// The tool with working memory, and with a script that leaves these files.
struct MemoryFixture {
    tool: ToolFixture,
    memory: Arc<dyn WorkingMemory>,
}

impl MemoryFixture {
    fn leaving(files: &[(&str, &'static [u8])]) -> Self {
        Self::with(Arc::new(VolatileMemory::new(MEMORY, Clock::SYSTEM)), files)
    }

    fn with(memory: Arc<dyn WorkingMemory>, files: &[(&str, &'static [u8])]) -> Self {
        let of_scripts = ScriptMemory { memory: Arc::clone(&memory), ttl: Duration::from_secs(1200) };
        let limits = Limits { disk: 4 << 20, ..LIMITS };
        let tool = ToolFixture::of(Settings { memory: Some(of_scripts), limits, ..settings() });
        let mut finished = finished(Ending::Exited(0), "");
        let file = |(name, bytes): &(&str, &'static [u8])| Artifact {
            name: (*name).to_owned(),
            bytes: Bytes::from_static(bytes),
        };
        finished.outcome.artifacts = files.iter().map(file).collect();
        *tool.fake.result.lock() = Some(Ok(finished));
        Self { tool, memory }
    }

    async fn save(&self, agent_name: &str, key: &str, value: &str) {
        let owner = MemoryOwner::of(&agent(agent_name)).unwrap();
        let entry = NewEntry::new(EntryKey::parse(key).unwrap(), value, Duration::from_secs(60));
        self.memory.save(owner, vec![entry]).await.unwrap();
    }

    async fn value(&self, agent_name: &str, key: &str) -> Option<String> {
        let owner = MemoryOwner::of(&agent(agent_name)).unwrap();
        let found = self.memory.get(owner, EntryKey::parse(key).unwrap()).await.unwrap();
        found.map(|entry| entry.value.to_string())
    }

    /// A call of the agent `a` in the session `s`.
    async fn run(&self, arguments: Value) -> Result<ToolOutput, ToolFailure> {
        self.run_by(Caller { session: Some("s".into()), ..agent("a") }, arguments).await
    }

    async fn run_by(&self, caller: Caller, mut arguments: Value) -> Result<ToolOutput, ToolFailure> {
        arguments["script"] = json!("pass");
        self.tool.call(caller, Duration::from_secs(600), arguments).await
    }

    /// The refusal of a call before its script runs.
    async fn refused(&self, arguments: Value) -> String {
        let failure = self.run(arguments).await.unwrap_err();
        assert_eq!(self.tool.fake.scripts.lock().len(), 0);
        format!("{:?}: {}", failure.cause, failure.message)
    }
}

#[tokio::test]
async fn entries_are_files_beside_others_whatever_the_spelling_of_their_keys() {
    let fixture = MemoryFixture::leaving(&[]);
    fixture.save("a", "session/s/plan", "of the session").await;
    fixture.save("a", "patrol/mail/state.json", "{}").await;
    let keys = json!(["Plan", "session/s/plan", "patrol/mail/state.json"]);
    for keys in [keys.clone(), json!(keys.to_string())] {
        fixture.run(json!({"input_keys": keys, "input_files": {"a.csv": "1,2"}})).await.unwrap();
        let files = fixture.tool.script().files;
        let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
        let expected: [(&str, &[u8]); 3] = [("a.csv", b"1,2"), ("plan", b"of the session"), ("state.json", b"{}")];
        assert_eq!(files, expected);
    }
}

#[tokio::test]
async fn files_that_are_saved_are_not_returned_and_others_are() {
    let fixture = MemoryFixture::leaving(&[("report.csv", b"a,b"), ("other.txt", b"c")]);
    let output = fixture.run(json!({"output_keys": ["report.csv"]})).await.unwrap();
    insta::assert_snapshot!(output.content.unwrap(), @r"
    Files: other.txt
    [Saved in working memory for 20 minutes, and not returned: `session/s/report.csv`.]
    ");
    assert!(!output.is_error);
    let returned: Vec<_> = output.blocks.iter().filter_map(|block| block.uri.as_deref()).collect();
    assert_eq!(returned, ["toolbus:output/other.txt"]);
    assert_eq!(fixture.value("a", "session/s/report.csv").await.as_deref(), Some("a,b"));
}

#[tokio::test]
async fn a_file_that_cannot_be_saved_is_returned_with_an_error() {
    let fixture = MemoryFixture::leaving(&[("good", b"text"), ("picture", b"\xff\xfe")]);
    let output = fixture.run(json!({"output_keys": ["good", "picture", "missing"]})).await.unwrap();
    insta::assert_snapshot!(output.content.unwrap(), @r"
    Files: picture
    [Not saved under `session/s/picture`: the file `picture` is not UTF-8.]
    [Not saved under `session/s/missing`: the script wrote no file `missing` to TOOLBUS_OUTPUT that can be returned.]
    [Saved in working memory for 20 minutes, and not returned: `session/s/good`.]
    ");
    assert!(output.is_error);
    assert_eq!(fixture.value("a", "session/s/good").await.as_deref(), Some("text"));
}

#[tokio::test]
async fn a_write_over_a_limit_saves_nothing_and_returns_the_files() {
    let fixture = MemoryFixture::leaving(&[("d", b"1"), ("e", b"2")]);
    for key in ["a", "b", "c"] {
        fixture.save("a", &format!("session/s/{key}"), "x").await;
    }
    let output = fixture.run(json!({"output_keys": ["d", "e"]})).await.unwrap();
    insta::assert_snapshot!(output.content.unwrap(), @r"
    Files: d, e
    [Nothing was saved in working memory: the namespace `session/s` has room for 4 entries. Delete some of them, or wait until they expire. The files were returned.]
    ");
    assert!(output.is_error && output.blocks.len() == 3);
    assert_eq!(fixture.value("a", "session/s/d").await, None);
}

#[tokio::test]
async fn a_key_that_there_is_not_or_that_is_anothers_is_refused_before_the_script_runs() {
    let fixture = MemoryFixture::leaving(&[]);
    fixture.save("b", "session/s/plan", "b's secret").await;
    let of_another = fixture.refused(json!({"input_keys": ["plan"]})).await;
    insta::assert_snapshot!(of_another, @"InvalidArguments: There is no entry `session/s/plan`, which `input_keys` names, or it has expired. The script was not run.");
    assert_eq!(of_another.replace("plan", "none"), fixture.refused(json!({"input_keys": ["none"]})).await);
    let failure = fixture.run_by(Caller::unknown(), json!({"input_keys": ["plan"]})).await.unwrap_err();
    assert_eq!(failure.cause, Cause::NotAllowed);
    let own = MemoryFixture::leaving(&[("plan", b"a's own")]);
    own.save("b", "session/s/plan", "b's").await;
    own.run(json!({"output_keys": ["plan"]})).await.unwrap();
    assert_eq!(own.value("b", "session/s/plan").await.as_deref(), Some("b's"));
}

#[tokio::test]
async fn keys_that_cannot_be_files_together_are_refused_with_what_to_do() {
    let fixture = MemoryFixture::leaving(&[]);
    let long = "x".repeat(1 << 20);
    for key in ["a", "b", "c"] {
        fixture.save("a", &format!("session/s/{key}"), &long).await;
    }
    let many: Vec<String> = (0..65).map(|key| key.to_string()).collect();
    let (some, files): (Vec<&String>, serde_json::Map<_, _>) =
        (many.iter().take(40).collect(), (0..30).map(|file| (format!("f{file}"), json!(""))).collect());
    let mut refusals = Vec::new();
    for arguments in [
        json!({"input_keys": ["a/x", "b/x"]}),
        json!({"output_keys": ["a/x?", "a/x!"]}),
        json!({"input_keys": ["x"], "input_files": {"x": ""}}),
        json!({"input_keys": many}),
        json!({"input_keys": some, "input_files": files}),
        json!({"input_keys": ["a", "b", "c"]}),
        json!({"input_keys": ["/x"]}),
        json!({"input_keys": "plan"}),
        json!({"output_keys": {"a": "b"}}),
    ] {
        refusals.push(fixture.refused(arguments).await);
    }
    insta::assert_snapshot!(refusals.join("\n"), @r#"
    InvalidArguments: The entries `a/x` and `b/x` in `input_keys` would both be the file `x`. Name one of them in another call, or save it under another key.
    InvalidArguments: The entries `a/x?` and `a/x!` in `output_keys` would both be the file `x_`. Name one of them in another call, or save it under another key.
    InvalidArguments: The entry `session/s/x` in `input_keys` would be the file `x`, and so would one in `input_files`. Give that one another name.
    InvalidArguments: Argument `input_keys` has more than 64 keys.
    InvalidArguments: Arguments `input_files` and `input_keys` have more than 64 files.
    InvalidArguments: Files in `input_files` and entries in `input_keys` may have 2 MiB together. The script was not run.
    InvalidArguments: Argument `input_keys`: `/x` cannot be used: it begins or ends with `/`, or has nothing between two of them.
    InvalidArguments: Argument `input_keys` must be an array of keys of working memory, such as ["plan", "report.csv"], or a string that holds such an array as JSON.
    InvalidArguments: Argument `output_keys` must be an array of keys of working memory, such as ["plan", "report.csv"], or a string that holds such an array as JSON.
    "#);
}

#[tokio::test]
async fn keys_are_described_only_with_working_memory() {
    let names = |fixture: &ToolFixture| {
        let parameters = fixture.tool.descriptor.parameters.clone().unwrap();
        toolbus_core::check_schema(&parameters).unwrap();
        ["input_keys", "output_keys"].map(|name| parameters["properties"].get(name).is_some())
    };
    let (with, without) = (MemoryFixture::leaving(&[]), ToolFixture::new());
    assert_eq!((names(&with.tool), names(&without)), ([true; 2], [false; 2]));
    assert!(with.tool.tool.descriptor.description.contains("input_files and those of input_keys."));
    let refused = without.run(json!({"script": "pass", "input_keys": []})).await.unwrap_err();
    insta::assert_snapshot!(refused.message, @"There is no argument `input_keys`. There are: script, input_data, input_files, timeout_seconds, pip_packages, session.");
}

/// A memory that cannot be reached.
#[derive(Debug)]
struct Away;

fn away<T: Send + 'static>() -> BoxFuture<'static, Result<T, MemoryError>> {
    std::future::ready(Err(StoreError::Failed("connection refused".to_owned()).into())).boxed()
}

impl WorkingMemory for Away {
    fn save(&self, _: MemoryOwner, _: Vec<NewEntry>) -> BoxFuture<'_, Result<(), MemoryError>> {
        away()
    }

    fn get(&self, _: MemoryOwner, _: EntryKey) -> BoxFuture<'_, Result<Option<MemoryEntry>, MemoryError>> {
        away()
    }

    fn list(&self, _: MemoryOwner, _: KeyPrefix) -> BoxFuture<'_, Result<Vec<EntryInfo>, MemoryError>> {
        away()
    }

    fn search(&self, _: MemoryOwner, _: SearchQuery) -> BoxFuture<'_, Result<Vec<SearchHit>, MemoryError>> {
        away()
    }

    fn delete(&self, _: MemoryOwner, _: EntryKey) -> BoxFuture<'_, Result<bool, MemoryError>> {
        away()
    }

    fn usage(&self) -> BoxFuture<'_, Result<MemoryUsage, MemoryError>> {
        away()
    }
}

#[tokio::test]
async fn while_memory_is_away_no_script_begins_and_written_files_are_returned() {
    let fixture = MemoryFixture::with(Arc::new(Away), &[("report", b"text")]);
    let failure = fixture.run(json!({"input_keys": ["plan"]})).await.unwrap_err();
    assert_eq!((failure.cause, fixture.tool.fake.scripts.lock().len()), (Cause::ConnectFailed, 0));
    let output = fixture.run(json!({"output_keys": ["report"]})).await.unwrap();
    insta::assert_snapshot!(output.content.unwrap(), @r"
    Files: report
    [Nothing was saved in working memory: working memory cannot be reached now. The files were returned.]
    ");
    assert!(output.is_error && output.blocks.len() == 2);
}
