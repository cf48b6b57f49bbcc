//! Real servers, tried by the real steps.

use std::collections::BTreeMap;

use toolbus_core::tool::{Naming, Validation};
use toolbus_testing::patience::eventually;

use super::*;
use crate::filter::ToolFilter;
use crate::spec::{Credentials, Endpoint, HttpKind, Origin, Program, ServerName, TransportSpec};

/// Answers by session, and knows three tools, one of them with a schema that cannot be used.
const GOOD: &str = r#"
import json, sys
def tool(name, schema):
    return {"name": name, "description": "", "inputSchema": schema}
tools = [tool("add", {"type": "object"}), tool("secret", {"type": "object"}), tool("odd", {"type": "object", "properties": 7})]
print("listening", file=sys.stderr, flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    answer = {"jsonrpc": "2.0", "id": request["id"]}
    if request["method"] == "initialize":
        answer["result"] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "sums", "version": "7"}}
    elif request["method"] == "tools/list":
        answer["result"] = {"tools": tools}
    elif request["method"] == "ping":
        answer["result"] = {}
    else:
        answer["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(answer), flush=True)
"#;
/// Does not survive a question that it does not know.
const FRAGILE: &str = r#"
line = sys.stdin.readline()
if "server/discover" in line:
    sys.exit(9)
class First:
    def __iter__(self):
        yield line
        yield from iter(sys.__stdin__.readline, "")
sys.stdin = First()
"#;

fn spec(transport: TransportSpec) -> ServerSpec {
    ServerSpec {
        name: ServerName::parse("sums").unwrap(),
        transport,
        tools: ToolFilter::new(Vec::new(), vec!["secret".to_owned()]),
        naming: Naming::default(),
        validation: Validation::Enforce,
        tool_timeout: None,
        is_lazy: false,
        is_disabled: false,
        origin: Origin::Configuration,
    }
}

fn python(script: &str) -> ServerSpec {
    let args = vec!["-c".to_owned(), format!("import sys\n{script}")];
    let (env, command) = (BTreeMap::new(), "python3".to_owned());
    spec(TransportSpec::Stdio(Program { command, args, env, cwd: None, roots: Vec::new() }))
}

async fn tried(spec: &ServerSpec) -> ProbeReport {
    probe(spec, &Launcher::of_tests(Duration::from_secs(1)), &Scanner::new().unwrap()).await
}

fn steps(report: &ProbeReport) -> Vec<(&str, bool, &str)> {
    report.steps.iter().map(|step| (step.name.as_str(), step.passed, step.text.as_str())).collect()
}

#[tokio::test]
async fn each_step_of_a_good_server_is_told_and_the_server_is_gone_afterwards() {
    let report = tried(&python(GOOD)).await;
    let pid = report.status.pid.unwrap();
    assert_eq!(
        steps(&report),
        [
            ("connect", true, "2025-06-18 with sessions; sums 7"),
            ("list", true, "1 tools, 1 hidden, 1 not allowed by the configuration"),
            ("ping", true, "answered"),
        ]
    );
    assert!(report.passed());
    let process = std::path::PathBuf::from(format!("/proc/{pid}"));
    eventually("the end of the server", async || (!process.exists()).then_some(())).await;
    let status = report.status;
    assert_eq!((status.phase, &*status.tools, status.last_error), (PhaseName::Ready, &["add".to_owned()][..], None));
    assert_eq!(status.hidden[0].name, "odd");
    assert_eq!(status.stderr, ["listening"]);
}

#[tokio::test]
async fn a_server_that_does_not_survive_the_question_for_its_generation_is_asked_again() {
    let report = tried(&python(&format!("{FRAGILE}{}", GOOD.replace("import json, sys", "import json")))).await;
    assert!(report.passed(), "{report:?}");
    assert_eq!(report.steps.len(), 3);
}

#[tokio::test]
async fn a_server_that_ends_at_once_is_told_with_its_last_words() {
    let report = tried(&python("print('no such database', file=sys.stderr); sys.exit(3)")).await;
    let told = steps(&report);
    assert_eq!((told.len(), told[0].0, told[0].1), (1, "connect", false));
    assert!(told[0].2.contains("exit code 3"), "{}", told[0].2);
    assert_eq!((report.passed(), report.status.phase), (false, PhaseName::Stopped));
    assert_eq!(report.status.stderr, ["no such database"]);
    assert_eq!(report.status.last_error.as_deref(), Some(told[0].2));
}

#[tokio::test]
async fn a_program_that_is_not_there_fails_at_the_start() {
    let mut missing = python("");
    if let TransportSpec::Stdio(program) = &mut missing.transport {
        program.command = "no-such-program".to_owned();
    }
    let report = tried(&missing).await;
    assert_eq!(
        steps(&report),
        [("connect", false, "program 'no-such-program' was not found; give its full path, or check PATH")]
    );
}

#[tokio::test]
async fn nobody_behind_a_url_is_told() {
    // Installed by the daemon's `main`; a second installation is refused, and does no harm.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
    drop(listener);
    let (kind, headers, credentials) = (HttpKind::Detect, BTreeMap::new(), Credentials::None);
    let report = tried(&spec(TransportSpec::Http(Endpoint { url, kind, headers, credentials }))).await;
    assert_eq!((report.steps.len(), report.passed(), &*report.status.transport), (1, false, "http?"));
}
