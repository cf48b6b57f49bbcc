//! Packages that are none: whatever pip would understand besides names and versions.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::caller::Caller;
use toolbus_core::events::Discard;
use toolbus_core::tool::{Tool, ToolCall};
use toolbus_sandbox::{Level, Sandbox};
use toolbus_scripts::config::PoolConfig;
use toolbus_scripts::packages::{Installer, PackageError};
use toolbus_scripts::queue::{Bounds, FairQueue};
use toolbus_scripts::requirement::{AllowedPackages, Requirement};
use toolbus_scripts::runner::sandbox::{SandboxRunner, SandboxSettings};
use toolbus_scripts::tool::{ScriptTool, Settings};

use crate::fixture::{LIMITS, helper, interpreter};

/// Installs nothing, and keeps what it was asked for.
#[derive(Default)]
struct Nothing(Mutex<Vec<String>>);

impl Installer for Nothing {
    fn install<'a>(&'a self, packages: &'a [Requirement], _: Instant) -> BoxFuture<'a, Result<PathBuf, PackageError>> {
        self.0.lock().extend(packages.iter().map(|package| package.as_str().to_owned()));
        async { Err(PackageError::Failed { exit_code: 1, stderr: "there is no such package".to_owned() }) }.boxed()
    }
}

/// The tool as agents call it, with every package allowed.
async fn tool(level: Level, installer: Arc<Nothing>) -> Tool {
    let settings = SandboxSettings {
        interpreter: interpreter().await,
        limits: LIMITS,
        require: level,
        strongest: level,
        pool: PoolConfig::NONE,
    };
    let runner = SandboxRunner::start(settings, Sandbox::with_helper(helper(), level).unwrap())
        .await
        .unwrap()
        .with_installer(installer);
    let settings = Settings {
        timeout: Duration::from_secs(30),
        max_timeout: Duration::from_secs(30),
        cpu_millis: 1000,
        limits: LIMITS,
        packages: AllowedPackages::parse(&["*"]).unwrap(),
        package_timeout: Duration::from_secs(30),
        sessions: None,
        memory: None,
        language: None,
    };
    let queue = FairQueue::new(Bounds { running: 1, waiting_per_owner: 1, waiting: 1 });
    ScriptTool::new(Arc::new(runner), queue, Arc::new(Discard), settings).into_tool()
}

/// Text of the result for an agent, or why there is none.
async fn told(tool: &Tool, packages: &Value) -> String {
    let Value::Object(arguments) = json!({"script": "print('ran')", "pip_packages": packages}) else { unreachable!() };
    let call = ToolCall {
        idempotency_key: None,
        tool: Arc::clone(&tool.descriptor.name),
        call_id: "call-1".into(),
        caller: Arc::new(Caller::unknown()),
        arguments: Arc::new(arguments),
        deadline: Clock::SYSTEM.now() + Duration::from_secs(60),
        limit: Duration::from_secs(60),
        cancelled: CancellationToken::new(),
        trace: None,
        number: None,
        room: None,
        turns: toolbus_core::Turns::default(),
        progress: None,
    };
    match Arc::clone(&tool.executor).execute_boxed(call).await {
        Ok(output) => output.content.unwrap(),
        Err(failure) => format!("{:?}: {}", failure.cause, failure.message),
    }
}

#[tokio::test]
async fn what_pip_would_take_for_more_than_a_package_never_reaches_it() {
    for level in [Level::Full, Level::NoNamespaces] {
        let installer = Arc::new(Nothing::default());
        let tool = tool(level, Arc::clone(&installer)).await;
        for package in [
            "requests; rm -rf /",
            "requests;python_version>'3'",
            "--index-url=http://evil.example/",
            "--index-url http://evil.example/",
            "-e .",
            "-r/etc/passwd",
            "git+https://evil.example/x.git",
            "x @ file:///etc/passwd",
            "https://evil.example/x.whl",
            "../x",
            "./x",
            "/etc/passwd",
            "x.whl",
            "requests\n--pre",
            "requests && id",
            "$(id)",
            "`id`",
            "requests\0",
            "",
            " ",
            "rëquests",
        ] {
            let said = told(&tool, &json!([package])).await;
            assert!(said.starts_with("InvalidArguments: Package "), "{package:?}: {said}");
        }
        let many: Vec<String> = (0..21).map(|number| format!("p{number}")).collect();
        assert!(told(&tool, &json!(many)).await.starts_with("InvalidArguments: "));
        assert!(told(&tool, &json!(["x".repeat(1 << 20)])).await.len() < 500, "nothing long is repeated");
        assert_eq!(*installer.0.lock(), Vec::<String>::new(), "{level}");
    }
}

#[tokio::test]
async fn a_package_that_nobody_knows_is_the_scripts_failure_and_the_script_does_not_run() {
    for level in [Level::Full, Level::NoNamespaces] {
        let installer = Arc::new(Nothing::default());
        let tool = tool(level, Arc::clone(&installer)).await;
        let said = told(&tool, &json!(["No_Such.Package>=1"])).await;
        assert_eq!(said, "pip install failed (exit 1):\nthere is no such package", "{level}");
        assert_eq!(*installer.0.lock(), ["no-such-package>=1"], "{level}");
    }
}
