//! Replies that a caller of `execute_python_script` gets.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::metrics::attribute;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::otlp::Receiver;
use toolbus_testing::otlp::proto::trace::v1::Span;
use toolbus_testing::otlp::proto::trace::v1::status::StatusCode;

use super::setup::{PATH, SCRIPT, call, start_by, with_client};

/// Makes a wheel of the package `local_lib`.
const WHEEL: &str = r"
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + '/local_lib-1.5-py3-none-any.whl', 'w') as wheel:
    info = 'local_lib-1.5.dist-info'
    wheel.writestr('local_lib/__init__.py', 'version = 1.5\n')
    wheel.writestr(info + '/METADATA', 'Metadata-Version: 2.1\nName: local_lib\nVersion: 1.5\n')
    wheel.writestr(info + '/WHEEL', 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    wheel.writestr(info + '/RECORD', '')
";

#[tokio::test]
async fn a_script_returns_its_output_fails_with_both_streams_and_is_ended_in_time() {
    let (site, daemon, client) = with_client(SCRIPT).await;
    let run = async |script: &str, more: &Value| {
        let body = client.exchange(&call(&client, script, more)).await.body();
        (body["isError"].as_bool(), body["content"].as_str().unwrap_or_default().to_owned(), body)
    };

    let both = "import os\nprint(os.environ['ROCKBOT_INPUT'], open(os.environ['TOOLBUS_INPUT_FILE']).read())";
    let (is_error, content, _) = run(both, &json!({"input_data": "sieben"})).await;
    assert_eq!((is_error, &*content), (Some(false), "sieben sieben\n"));
    let (_, content, _) = run(both, &json!({"input_data": {"n": 7}})).await;
    assert_eq!(content, "{\"n\":7} {\"n\":7}\n");
    let (is_error, content, _) = run("pass", &json!({})).await;
    assert_eq!((is_error, &*content), (Some(false), "(no output)"));

    let failing = "import sys\nprint('half')\nsys.exit('no more')";
    let (is_error, content, _) = run(failing, &json!({})).await;
    assert_eq!((is_error, &*content), (Some(true), "Script failed (exit 1):\nhalf\nstderr:\nno more\n"));

    let (is_error, content, _) = run("import time\ntime.sleep(60)", &json!({"timeout_seconds": "1"})).await;
    assert_eq!(is_error, Some(true));
    insta::assert_snapshot!(content, @"execute_python_script timed out after 1s. Either increase timeout_seconds, simplify the script, or consider an alternative approach that does not require script execution.");

    let left = "import os\nopen(os.environ['TOOLBUS_OUTPUT'] + '/table.csv', 'w').write('a,b\\n')\nprint('done')";
    let (_, content, body) = run(left, &json!({})).await;
    assert_eq!(content, "done\n");
    insta::assert_json_snapshot!(body["contentBlocks"], @r#"
    [
      {
        "text": "done\n",
        "type": "text"
      },
      {
        "mimeType": "text/csv",
        "text": "a,b\n",
        "type": "resource",
        "uri": "toolbus:output/table.csv"
      }
    ]
    "#);

    let (_, _, refused) = run("import six", &json!({"pip_packages": ["six"]})).await;
    assert_eq!(refused["code"], "not_allowed", "{refused}");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn scripts_in_another_language_have_a_tool_of_their_own() {
    let (site, daemon, client) =
        with_client(&format!("{SCRIPT}languages = {{ bash = {{ command = [\"bash\"] }} }}\n")).await;
    let arguments = json!({"script": "echo \"of bash: $ROCKBOT_INPUT\"", "input_data": "seven"});
    assert_eq!(client.call("execute_bash_script", &arguments).await.content(), "of bash: seven\n");
    let python = client.exchange(&call(&client, "print(7)", &json!({}))).await.body();
    assert_eq!(python["content"], "7\n");
    daemon.stop(&site).await;

    for (language, mistake) in [
        ("command = [\"cobc\"]", "command: program 'cobc' was not found; give its full path, or check PATH"),
        ("command = [\"sh\"], read = [\"/nowhere\"]", "read: '/nowhere' does not exist"),
    ] {
        let more = format!("[script]\nlanguages = {{ cobol = {{ {language} }} }}\n");
        let mut refused = Daemon::spawn(&site, &more, &PATH);
        assert_eq!(refused.ended().await.code(), Some(1), "{}", refused.text());
        assert!(refused.text().contains(&format!("script.languages.cobol.{mistake}")), "{}", refused.text());
    }
}

#[tokio::test]
async fn a_script_has_the_packages_that_are_allowed_and_no_others() {
    let (site, folder) = (BrokerNamespace::shared().await, tempfile::tempdir().unwrap());
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let python = with_pip();
    assert!(std::process::Command::new(python).args(["-c", WHEEL]).arg(folder.path()).status().unwrap().success());
    let (cache, wheels) = (folder.path().join("cache"), folder.path().to_str().unwrap());
    let collector = Receiver::start().await.unwrap();
    let endpoint = collector.grpc_endpoint();
    let more = format!(
        "{SCRIPT}python = {python:?}\npackages = {{ allow = [\"local-lib<2\"], cache = {cache:?}, \
         index_url = \"file://{wheels}\" }}\n\
         [telemetry]\notlp_endpoint = {endpoint:?}\n[invoke]\nmax_timeout = \"300s\"\ndefault_timeout = \"300s\"\n"
    );
    // How pip is configured for the daemon does not count.
    let configured =
        [("PIP_FIND_LINKS", "/nowhere"), ("PIP_INDEX_URL", "http://127.0.0.1:1/"), ("PIP_REQUIRE_HASHES", "1")];
    let daemon = start_by(&[], &site, &more, &configured).await;
    let client = Client::connect(&site).await;
    let script = "import local_lib, os\nprint(local_lib.version, sorted(name for name in os.environ if 'PIP' in name))";
    let reply = client.exchange(&call(&client, script, &json!({"pip_packages": ["Local_Lib"]}))).await;
    assert_eq!(reply.content(), "1.5 []\n", "{}", reply.body());
    for (refused, code) in [
        ("six", "not_allowed"),
        ("local-lib @ file:///tmp/x.whl", "invalid_arguments"),
        ("--index-url=http://127.0.0.1", "invalid_arguments"),
    ] {
        let reply = client.exchange(&call(&client, script, &json!({"pip_packages": [refused]}))).await;
        assert_eq!(reply.code(), code, "{refused}: {}", reply.body());
    }
    let absent = client.exchange(&call(&client, script, &json!({"pip_packages": ["local-lib>=2"]}))).await;
    assert!(absent.content().starts_with("pip install failed (exit 1):"), "{}", absent.body());
    let without = client.exchange(&call(&client, script, &json!({}))).await;
    assert!(without.content().contains("No module named 'local_lib'"), "{}", without.body());
    daemon.stop(&site).await;
    let mut installed: Vec<_> = collector.spans().into_iter().filter(|span| span.name == "install packages").collect();
    installed.sort_by_key(|span| span.start_time_unix_nano);
    let of = |span: &Span| {
        let status = span.status.clone().unwrap_or_default();
        (attribute(&span.attributes, "toolbus.script.packages").to_owned(), status.code(), status.message)
    };
    let runs: Vec<_> = installed.iter().map(of).collect();
    assert_eq!((runs.len(), runs[0].0.as_str(), runs[0].1), (2, "local-lib<2", StatusCode::Unset), "{runs:?}");
    assert_eq!((runs[1].0.as_str(), runs[1].1), ("local-lib<2,>=2", StatusCode::Error), "{runs:?}");
    assert!(runs[1].2.starts_with("pip install failed (exit 1)") && runs[1].2.len() <= 255, "{runs:?}");
}

/// An interpreter with pip, the system's first: other users can run it.
fn with_pip() -> &'static str {
    let has_pip = |python: &&str| {
        let version = std::process::Command::new(python).args(["-I", "-m", "pip", "--version"]).output();
        version.is_ok_and(|version| version.status.success())
    };
    ["/usr/bin/python3", "/usr/local/bin/python3", "python3"].into_iter().find(has_pip).unwrap()
}
