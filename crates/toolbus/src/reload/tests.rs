use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use toolbus_core::audit::Silent;
use toolbus_core::caller::Caller;
use toolbus_core::failure::ToolFailure;
use toolbus_core::registry::Rank;
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};

use super::*;
use crate::assembly;

/// Longer than a reload that waits for nobody takes.
const LATE: Duration = Duration::from_secs(10);

struct Nothing;

impl Executor for Nothing {
    async fn execute(&self, _: ToolCall) -> Result<ToolOutput, ToolFailure> {
        Ok(ToolOutput::default())
    }
}

fn live(config: &Config) -> Live {
    let (registry, sets) = assembly::tools(config).unwrap();
    Live {
        access: assembly::access(config, registry).unwrap(),
        sessions: SessionSets::new(sets),
        servers: None,
        scripts: Scripts::default(),
        http_auth: HttpAuth::new(config, Arc::new(Silent), CancellationToken::new()),
        pins: assembly::pins(config, None).unwrap(),
        digest: watch::Sender::new(config.digest()),
        redactor: Default::default(),
    }
}

#[tokio::test]
async fn commands_change_while_running_and_scripts_with_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.toml");
    let command =
        |name: &str| format!("[[commands]]\nname = '{name}'\ndescription = 'x'\ncommand = ['true']\nsandbox = false\n");
    let config = Config::default();
    let live = live(&config);
    let access = live.access.clone();
    let mut reloader = Reloader::new(Sources { files: vec![file.clone()], ..Sources::default() }, config, live);
    let has = |name: &str| access.registry().snapshot().get(name).is_some();

    std::fs::write(&file, command("one")).unwrap();
    assert_eq!(reloader.reload().await.unwrap().waiting, Vec::<&str>::new());
    assert!(has("one"));
    std::fs::write(&file, format!("{}[script]\n", command("two"))).unwrap();
    assert_eq!(reloader.reload().await.unwrap().waiting, ["script"]);
    assert!(has("two") && !has("one") && !has("execute_python_script"));
    std::fs::write(&file, command("two").replace("'true'", "'no-such-program-at-all'")).unwrap();
    reloader.reload().await.unwrap_err();
    assert!(has("two"), "nothing has changed");
}

#[tokio::test]
async fn a_layer_that_is_truncated_opens_nothing_to_callers_that_were_denied_or_restricted() {
    for lost in ["[agents.ana]\ntoolsets = []\n", "[agents.default]\nallowed_tools = ['echo']\n"] {
        let folder = tempfile::tempdir().unwrap();
        let files = ["tools.toml", "agents.toml"].map(|name| folder.path().join(name));
        let [tools, agents] = &files;
        std::fs::write(tools, "[tools]\necho = true\n[identity]\ntrust_headers = true\n").unwrap();
        std::fs::write(agents, lost).unwrap();
        let sources = Sources { files: files.to_vec(), ..Sources::default() };
        let config = Config::load(&sources).unwrap().config;
        let live = live(&config);
        let access = live.access.clone();
        let mut reloader = Reloader::new(sources, config, live);
        let by_stranger = || access.effective(&Caller::unknown()).names().count();
        let before = by_stranger();

        std::fs::write(agents, "").unwrap();
        let error = reloader.reload().await.unwrap_err();
        assert!(matches!(error, ReloadError::Widening(_)), "{error}");
        assert_eq!(by_stranger(), before, "{lost}");
        std::fs::write(agents, lost).unwrap();
        reloader.reload().await.unwrap();
        std::fs::write(agents, "[identity]\nunknown = 'default'\n").unwrap();
        reloader.reload().await.unwrap();
        assert!(by_stranger() > before, "{lost}");
    }
}

#[tokio::test]
async fn a_file_that_is_slow_to_read_holds_no_thread_of_the_runtime_up() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("a.toml");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let config = Config::default();
    let live = live(&config);
    let sources = Sources { files: vec![pipe.clone()], ..Sources::default() };
    let mut reloader = Reloader::new(sources, config, live);

    let (let_go, may_end) = mpsc::channel::<()>();
    let writer = std::thread::spawn(move || {
        let _ = may_end.recv_timeout(LATE);
        std::fs::write(pipe, "[invoke]\nmax_in_flight = 7\n")
    });
    let reload = reloader.reload();
    tokio::pin!(reload);
    tokio::select! {
        biased;
        _ = &mut reload => panic!("the only thread of the runtime waited for the file"),
        () = std::future::ready(()) => {}
    }
    let_go.send(()).unwrap();
    assert_eq!(reload.await.unwrap().waiting, ["invoke"]);
    writer.join().unwrap().unwrap();
}

#[tokio::test]
async fn a_pinned_server_that_is_taken_out_lets_nothing_through_while_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.toml");
    std::fs::write(&file, "[mcp.servers.x]\ncommand = 'true'\npin = true\n[pins]\nfile = 'none'\n").unwrap();
    let sources = Sources { files: vec![file.clone()], ..Sources::default() };
    let config = Config::load(&sources).unwrap().config;
    let live = live(&config);
    let (access, pins) = (live.access.clone(), live.pins.clone());
    let mut reloader = Reloader::new(sources, config, live);
    access.vet(Arc::new(pins.clone()));
    let say = |text: &str| {
        let descriptor = ToolDescriptor { description: text.to_owned(), ..ToolDescriptor::new("read", "mcp:x", "mcp") };
        access.registry().publish(Rank::Configured, &"mcp:x".into(), vec![Tool::new(descriptor, Nothing)]).unwrap();
        access.refresh();
    };
    let held = || pins.counts().iter().map(|count| count.held).sum::<usize>();
    say("Reads.");
    say("Reads all.");
    assert_eq!(held(), 1);
    std::fs::write(&file, "").unwrap();
    reloader.reload().await.unwrap();
    assert_eq!(held(), 1, "its tools are still there");
}
