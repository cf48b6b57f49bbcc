use toolbus_core::Clock;
use toolbus_core::policy::{AgentPolicy, Allowed};
use toolbus_core::registry::Registry;

use super::*;
use crate::{schedule, testing};

const FAMILIES: &[(GuideFor, &str, &str)] = &[
    (GuideFor::Source(schedule::tools::SOURCE), "scheduling", schedule::GUIDE),
    (GuideFor::Tool("web_search"), "web-tools", "Use `web_search` first."),
    (GuideFor::Source("web"), "web-tools", "# The web\n\nSearch first.\n\nMore."),
];

/// The agent `ana`, who may use one tool of the web, `zoe`, who may use two, and `bob`, who may use everything but search.
fn policy() -> PolicyHandle {
    let registry = Registry::new();
    let tools = [("web_browse", "web"), ("web_search", "web"), ("schedule_task", "scheduling"), ("echo", "echo")];
    for (name, source) in tools {
        registry
            .register_all(vec![Tool::new(ToolDescriptor::new(name, source, "local"), testing::UnusedExecutor)])
            .unwrap();
    }
    let only = |names: &[&str]| {
        let patterns = names.iter().map(|name| Pattern::parse(name).unwrap());
        AgentPolicy { tools: Allowed::Only(patterns.collect()), ..AgentPolicy::default() }
    };
    let agents = [
        ("ana", only(&["web_browse"])),
        ("zoe", only(&["web_*"])),
        ("eve", only(&["none_*"])),
        ("bob", only(&["web_browse", "schedule_task", "echo"])),
    ];
    testing::policy(registry, agents)
}

async fn run(guides: &Guides, agent: &str, name: &str, arguments: Value) -> (bool, String) {
    let tools = guides.tools(&policy());
    let output = testing::run(&tools, testing::agent(agent), name, arguments, Clock::SYSTEM).await.unwrap();
    (output.is_error, output.content.unwrap())
}

fn guides(config: &GuidesConfig) -> Guides {
    let of_servers = |effective: &EffectiveTools| match effective.get("echo") {
        Some(_) => vec![Guide::new("files", "Reads files.\nAsk for a root first.")],
        None => Vec::new(),
    };
    Guides::new(FAMILIES, config, Arc::new(of_servers)).unwrap()
}

#[tokio::test]
async fn a_guide_names_the_tools_that_its_reader_can_use() {
    let guides = guides(&GuidesConfig::default());
    let web = json!({"name": "web-tools"});
    assert_eq!(run(&guides, "zoe", GET, web.clone()).await.1, "Use `web_search` first.");
    assert_eq!(run(&guides, "ana", GET, web).await.1, "# The web\n\nSearch first.\n\nMore.");
    assert_eq!(run(&guides, "zoe", LIST, json!({})).await.1, "- `web-tools`: Use `web_search` first.");
}

#[tokio::test]
async fn a_caller_gets_the_guides_of_tools_that_it_can_use() {
    let guides = guides(&GuidesConfig::default());
    insta::assert_snapshot!(run(&guides, "bob", LIST, json!({})).await.1, @r"
    - `files`: Reads files. Ask for a root first.
    - `scheduling`: You give a task a name, times and a description. At each time you receive the name and the description as a message, and nothing else of what you know now.
    - `web-tools`: Search first.
    ");
    assert_eq!(run(&guides, "ana", LIST, json!({})).await.1, "- `web-tools`: Search first.");
    assert_eq!(run(&guides, "eve", LIST, json!({})).await.1, "There are no guides to your tools.");
    let web = json!({"name": "Web-Tools"});
    assert_eq!(run(&guides, "ana", GET, web.clone()).await, (false, "# The web\n\nSearch first.\n\nMore.".to_owned()));
    for name in ["scheduling", "absent"] {
        let (is_error, text) = run(&guides, "ana", GET, json!({"name": name})).await;
        assert_eq!((is_error, text), (true, format!("There is no guide `{name}`. There are `web-tools`.")));
    }
    assert_eq!(run(&guides, "eve", GET, web).await, (true, "There are no guides to your tools.".to_owned()));
}

#[tokio::test]
async fn files_of_a_folder_are_guides_for_every_caller_or_for_users_of_their_tools() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("house.md", "# The house\n\nBe brief.");
    write("echo.md", "tools: absent, ech*\n\n# Echo\n\nSays it again.");
    write("web-tools.md", "tools: web_browse\nOur own text.");
    write("notes.txt", "No guide.");
    let guides = guides(&GuidesConfig { folder: Some(folder.path().to_owned()) });
    let listed = run(&guides, "ana", LIST, json!({})).await.1;
    assert_eq!(listed, "- `house`: Be brief.\n- `web-tools`: Our own text.");
    let listed = run(&guides, "bob", LIST, json!({})).await.1;
    assert!(listed.contains("- `echo`: Says it again.") && !listed.contains("notes"), "{listed}");
    assert_eq!(run(&guides, "bob", GET, json!({"name": "echo"})).await.1, "# Echo\n\nSays it again.");
}

#[test]
fn a_folder_that_cannot_be_read_and_a_file_that_is_too_long_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let read = |folder: PathBuf| {
        Guides::new(FAMILIES, &GuidesConfig { folder: Some(folder) }, Arc::new(|_: &EffectiveTools| Vec::new()))
    };
    assert_eq!(read(folder.path().join("absent")).err().unwrap().kind(), io::ErrorKind::NotFound);
    fs::write(folder.path().join("long.md"), "x".repeat(256 * 1024 + 1)).unwrap();
    let error = read(folder.path().to_owned()).err().unwrap().to_string();
    assert!(error.ends_with("long.md`: a guide has at most 262144 bytes"), "{error}");
}

#[test]
fn a_summary_is_the_first_paragraph_on_one_short_line() {
    let summary = |text: &str| Guide::new("x", text).summary;
    assert_eq!(summary("# Title\n\n## More\nOne\n  two\n\nthree"), "One two");
    assert_eq!(summary(""), "");
    assert_eq!(summary(&"x".repeat(300)), format!("{}…", "x".repeat(200)));
}
