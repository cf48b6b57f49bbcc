//! A policy with a few servers, and stand-ins for what runs them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending};
use parking_lot::Mutex;
use serde_json::{Value, json};
use toolbus_core::Clock;
use toolbus_core::caller::{AgentName, Caller, Identity};
use toolbus_core::failure::ToolFailure;
use toolbus_core::pattern::Pattern;
use toolbus_core::policy::{AgentPolicy, Allowed, Capacity, EffectiveTools, Policy, PolicyHandle};
use toolbus_core::registry::Registry;
use toolbus_core::tool::{Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_core::{InnerCall, Invoker};
use toolbus_store::MemoryStore;
use toolbus_testing::faulty_store::FaultyStore;

use crate::model_tools::rules::tests::rules;
use crate::model_tools::{Registrar, tools};
use crate::servers::{ServerControl, ServerDescription};
use crate::spec::{ServerName, ServerOrigin, ServerSpec, TransportSpec};
use crate::testing;

/// The agents `ana`, with reading tools, and `bob`, with all tools; three servers, of which `Lazy` has not been
/// started.
pub(super) struct Fixture {
    pub(super) access: PolicyHandle,
    pub(super) tools: Vec<Tool>,
    pub(super) servers: Arc<FakeServers>,
    pub(super) invoker: Arc<FakeInvoker>,
    pub(super) fleet: Arc<FakeServers>,
    pub(super) store: Arc<FaultyStore<MemoryStore>>,
    pub(super) registrar: Arc<Registrar>,
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self::of(true)
    }

    pub(super) fn without_registration() -> Self {
        Self::of(false)
    }

    fn of(registers: bool) -> Self {
        let registry = Registry::new();
        registry.register_all(known_tools()).unwrap();
        let patterns = |texts: &[&str]| texts.iter().map(|text| Pattern::parse(text).unwrap()).collect();
        let forced = json!({"root": "/data"}).as_object().cloned().unwrap();
        let ana = AgentPolicy {
            tools: Allowed::Only(patterns(&["read_*", "mcp_*", "late"])),
            arguments: vec![(Pattern::parse("read_file").unwrap(), Arc::new(forced))],
            ..AgentPolicy::default()
        };
        let agents = [("ana", ana), ("bob", AgentPolicy::default())];
        let agents = agents.map(|(name, section)| (AgentName::parse(name).unwrap(), section)).into();
        let capacity = Capacity { max_in_flight: 16, max_waiting: 16 };
        let policy = Policy { agents, ..Policy::default() };
        let access = PolicyHandle::new(registry.clone(), Identity::default(), policy, capacity);
        let servers = Arc::new(FakeServers::new(registry));
        let (invoker, fleet, store) =
            (Arc::<FakeInvoker>::default(), Arc::clone(&servers), Arc::<FaultyStore<MemoryStore>>::default());
        let (kept, control) = (Arc::clone(&store) as _, Arc::clone(&fleet) as _);
        let registrar = Arc::new(Registrar::new(rules(), kept, true, control, Clock::SYSTEM));
        let known: Arc<dyn ServerControl> = Arc::clone(&servers) as _;
        let tools = tools(&access, known, Arc::clone(&invoker) as _, registers.then(|| Arc::clone(&registrar)));
        Self { access, tools, servers, invoker, fleet, store, registrar }
    }

    /// Calls a management tool.
    pub(super) async fn call(&self, caller: &Caller, tool: &str, arguments: Value) -> Result<ToolOutput, ToolFailure> {
        self.run(tool, call(caller, tool, arguments)).await
    }

    pub(super) async fn run(&self, tool: &str, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let tool = self.tools.iter().find(|known| *known.descriptor.name == *tool).unwrap();
        Arc::clone(&tool.executor).execute_boxed(call).await
    }

    /// Returns the outcome of a call as text.
    pub(super) async fn outcome(&self, caller: &Caller, tool: &str, arguments: Value) -> String {
        match self.call(caller, tool, arguments).await {
            Ok(ToolOutput { content, is_error: false, .. }) => content.unwrap_or_default(),
            Ok(ToolOutput { content, .. }) => format!("error: {}", content.unwrap_or_default()),
            Err(failure) => format!("{:?}: {}", failure.cause, failure.message),
        }
    }

    pub(super) async fn register(&self, caller: &Caller, arguments: Value) -> String {
        self.outcome(caller, "mcp_register_server", arguments).await
    }

    pub(super) async fn unregister(&self, caller: &Caller, name: &str) -> String {
        self.outcome(caller, "mcp_unregister_server", json!({"server_name": name})).await
    }
}

pub(super) fn agent(name: &str) -> Caller {
    Caller::agent(AgentName::parse(name).unwrap())
}

pub(super) fn call(caller: &Caller, tool: &str, arguments: Value) -> ToolCall {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    ToolCall { caller: Arc::new(caller.clone()), arguments: Arc::new(arguments), ..testing::call(tool) }
}

fn known_tools() -> Vec<Tool> {
    let path = json!({
        "type": "object",
        "properties": {"path": {"type": "string"}, "root": {"type": "string"}},
        "required": ["path", "root"],
    });
    vec![
        tool("read_file", "Files", "Reads a file.", Some(path)),
        tool("read_all", "Files", "Reads all files.", None),
        tool("write_file", "Files", "Writes a file.", None),
        tool("send_mail", "mail", "Sends mail.", None),
        Tool::new(ToolDescriptor::new("read_clock", "time", "local"), ToolOutput::default()),
    ]
}

fn tool(name: &str, server: &str, description: &str, schema: Option<Value>) -> Tool {
    let descriptor = ToolDescriptor {
        description: description.to_owned(),
        parameters: schema.map(Arc::new),
        server: Some(server.into()),
        ..ToolDescriptor::new(name, format!("mcp:{server}"), "mcp")
    };
    Tool::new(descriptor, ToolOutput::default())
}

/// Servers that connect, unless `fails` or `hangs` is set. Configured is `files`. `Lazy` registers its tool when it is
/// woken, without a notification of the policy.
pub(super) struct FakeServers {
    registry: Registry,
    pub(super) wakes: Mutex<Vec<String>>,
    pub(super) servers: Mutex<BTreeMap<String, ServerSpec>>,
    /// Everything that was ever added.
    pub(super) added: Mutex<Vec<TransportSpec>>,
    /// Whether servers do not connect.
    pub(super) fails: AtomicBool,
    /// Whether servers neither connect nor fail.
    pub(super) hangs: AtomicBool,
}

impl FakeServers {
    pub(super) fn new(registry: Registry) -> Self {
        Self {
            registry,
            wakes: Mutex::default(),
            servers: Mutex::default(),
            added: Mutex::default(),
            fails: AtomicBool::new(false),
            hangs: AtomicBool::new(false),
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.servers.lock().values().map(|spec| spec.name.to_string()).collect()
    }
}

impl ServerControl for FakeServers {
    fn within_reach(&self, effective: &EffectiveTools) -> Vec<ServerName> {
        let all = ["Files", "mail", "Lazy"].map(|name| ServerName::parse(name).unwrap());
        all.into_iter().filter(|name| effective.could_have(name.source(), None)).collect()
    }

    fn asleep(&self, effective: &EffectiveTools) -> Vec<ServerName> {
        let is_awake = !self.wakes.lock().is_empty();
        self.within_reach(effective).into_iter().filter(|name| !is_awake && &**name.folded() == "lazy").collect()
    }

    fn refresh(&self, _: &ServerName) {}

    fn describe(&self, _: &str) -> Option<ServerDescription> {
        None
    }

    fn wake<'a>(&'a self, server: &'a ServerName, _: Instant) -> BoxFuture<'a, ()> {
        self.wakes.lock().push(server.to_string());
        if &**server.folded() == "lazy" {
            self.registry.register(tool("late", "Lazy", "Comes late.", None)).unwrap();
        }
        async {}.boxed()
    }

    fn add<'a>(&'a self, spec: ServerSpec, _: Instant) -> BoxFuture<'a, Result<Vec<String>, String>> {
        assert_eq!(spec.origin, ServerOrigin::Registration);
        self.added.lock().push(spec.transport.clone());
        self.servers.lock().insert(spec.name.folded().to_string(), spec);
        if self.hangs.load(Ordering::Relaxed) {
            return pending().boxed();
        }
        let fails = self.fails.load(Ordering::Relaxed);
        async move {
            if fails { Err("it ended at once.".to_owned()) } else { Ok(vec!["a".to_owned(), "b".to_owned()]) }
        }
        .boxed()
    }

    fn remove<'a>(&'a self, name: &'a ServerName) -> BoxFuture<'a, bool> {
        let was_there = self.servers.lock().remove(&**name.folded()).is_some();
        async move { was_there }.boxed()
    }

    fn origin(&self, name: &str) -> Option<ServerOrigin> {
        let name = name.to_lowercase();
        if name == "files" {
            return Some(ServerOrigin::Configuration);
        }
        self.servers.lock().get(&name).map(|spec| spec.origin)
    }
}

/// Notes the inner calls, and returns `result`.
pub(super) struct FakeInvoker {
    pub(super) calls: Mutex<Vec<InnerCall>>,
    pub(super) result: Mutex<Result<ToolOutput, ToolFailure>>,
}

impl Default for FakeInvoker {
    fn default() -> Self {
        Self { calls: Mutex::default(), result: Mutex::new(Ok(ToolOutput::text("done"))) }
    }
}

impl Invoker for FakeInvoker {
    fn invoke(&self, call: InnerCall) -> BoxFuture<'_, Result<ToolOutput, ToolFailure>> {
        self.calls.lock().push(call);
        let result = self.result.lock().clone();
        async { result }.boxed()
    }
}
