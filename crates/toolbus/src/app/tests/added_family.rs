//! A family of tools in one file, which the app builds, lists, calls, reloads, and ends as it does its own.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::{BoxFuture, FutureExt as _, ready};
use parking_lot::Mutex;
use toolbus_core::caller::Caller;
use toolbus_core::failure::ToolFailure;
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolOutput};
use toolbus_core::{InnerCall, InnerOrigin, Invoker};

use super::*;
use crate::families::FamilyPlan;

/// Greets by the name of the daemon, where the configuration has `echo`.
#[derive(Clone, Default)]
struct Greetings {
    /// Steps of its life, in the order in which they came.
    steps: Arc<Mutex<Vec<&'static str>>>,
    is_ended: Arc<AtomicBool>,
}

struct Greet(String);

impl Executor for Greet {
    async fn execute(&self, _: ToolCall) -> Result<ToolOutput, ToolFailure> {
        Ok(ToolOutput::text(format!("Hello from {}", self.0)))
    }
}

impl ToolFamily for Greetings {
    fn name(&self) -> &'static str {
        "greetings"
    }

    fn tools(&self, plan: &mut FamilyPlan<'_>) -> Result<Vec<Tool>, FamilyError> {
        self.steps.lock().push("tools");
        let steps = Arc::clone(&self.steps);
        plan.on_commit(move || steps.lock().push("commit"));
        let (description, parameters) = ("Greets", json!({"type": "object"}));
        let descriptor = ToolDescriptor::local("greet", "greetings", description, Effect::ReadOnly, parameters);
        let tool = Tool::new(descriptor, Greet(plan.config.bus.name.clone()));
        Ok(plan.config.tools.echo.then_some(tool).into_iter().collect())
    }

    fn start(&self) -> BoxFuture<'_, ()> {
        self.steps.lock().push("start");
        ready(()).boxed()
    }

    fn leave(&self) -> BoxFuture<'_, ()> {
        self.steps.lock().push("leave");
        ready(()).boxed()
    }

    fn end(&self, _: Duration) -> BoxFuture<'_, ()> {
        self.is_ended.store(true, Ordering::Relaxed);
        ready(()).boxed()
    }
}

async fn greeted(app: &App) -> Result<ToolOutput, ToolFailure> {
    let call = InnerCall {
        origin: InnerOrigin::McpClient,
        caller: Arc::new(Caller::unknown()),
        call_id: "c".into(),
        server: None,
        tool: "greet".to_owned(),
        arguments: None,
        deadline: None,
        cancelled: CancellationToken::new(),
        trace: None,
        around: None,
        progress: None,
        idempotency_key: None,
    };
    app.calls.dispatcher.invoke(call).await
}

fn loaded(file: &Path) -> (Sources, Config) {
    let sources = Sources { files: vec![file.to_owned()], ..Sources::default() };
    let config = Config::load(&sources).unwrap().config;
    (sources, config)
}

#[tokio::test]
async fn a_family_that_is_added_in_one_line_is_listed_called_reloaded_and_drained() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.toml");
    std::fs::write(&file, "[tools]\necho = true\n[tools.limits.greet]\nmax_in_flight = 3\n").unwrap();
    let (sources, config) = loaded(&file);
    let added = Greetings::default();
    let mut app = assembly::build(&config, Mode::Command { pins: None }, |context| {
        let mut families = families::all(context)?;
        families.push(Box::new(added.clone()));
        Ok(families)
    })
    .await
    .unwrap();
    app.sources = sources;
    assert_eq!(*added.steps.lock(), ["tools"], "nothing changes before the start");
    app.start().await;
    app.listen();
    assert_eq!(*added.steps.lock(), ["tools", "commit", "start"]);

    let listed =
        || app.policy.current().tools().iter().find(|tool| &*tool.name == "greet").map(|tool| tool.max_in_flight);
    assert_eq!(listed(), Some(Some(3)));
    assert_eq!(greeted(&app).await.unwrap().content.as_deref(), Some("Hello from toolbus"));

    std::fs::write(&file, "").unwrap();
    let report = app.reload().await.unwrap();
    assert!(report.removed.contains(&"greet".to_owned()), "{:?}", report.removed);
    greeted(&app).await.unwrap_err();
    std::fs::write(&file, "[tools]\necho = true\n").unwrap();
    app.reload().await.unwrap();
    greeted(&app).await.unwrap();

    assert!(!added.is_ended.load(Ordering::Relaxed));
    app.drain(Duration::ZERO).await;
    assert_eq!(added.steps.lock().last(), Some(&"leave"));
    assert!(added.is_ended.load(Ordering::Relaxed));
}
