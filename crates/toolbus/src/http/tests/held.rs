//! Quarantined tools.

use toolbus_core::policy::{DefinitionCheck, Quarantine};

use super::*;

/// Quarantines the named tools.
struct Holds(&'static [&'static str]);

impl DefinitionCheck for Holds {
    fn review(&self, tools: &[Arc<ToolDescriptor>]) -> Quarantine {
        let mut held = Quarantine::default();
        tools.iter().filter(|tool| !self.admits(tool)).for_each(|tool| held.insert(tool, "it changed"));
        held
    }

    fn admits(&self, tool: &ToolDescriptor) -> bool {
        !self.0.contains(&&*tool.name)
    }
}

#[tokio::test]
async fn a_quarantined_required_tool_is_not_missing_and_blocks_all_the_same() {
    let registry = Registry::new();
    for name in ["get_weather", "echo", "other"] {
        registry.register(Tool::new(ToolDescriptor::new(name, "test", "local"), ToolOutput::default())).unwrap();
    }
    let (_bus, state) = watch::channel(good());
    let required_tools = ["get_weather", "echo"].map(str::to_owned).to_vec();
    let sources = HealthSources { required_tools, servers: Arc::new(Servers), ..sources(state, registry) };
    sources.policy.set_definition_check(Arc::new(Holds(&["get_weather", "other"])));
    let health = Health::new(sources);
    let readiness = serde_json::to_value(health.readiness()).unwrap();
    let blocked_by = json!([{"reason": "tool_held_back", "tool": "get_weather"}]);
    assert_eq!(readiness, json!({"ready": false, "blockedBy": blocked_by}));
    assert_eq!(health.status().counts.held_back, 2);
}

/// Servers in every relevant state, and one that was left out.
struct Several;

impl McpAdmin for Several {
    fn status(&self) -> Vec<ServerStatus> {
        let server = |name: &str, phase, last_error: Option<&str>| ServerStatus {
            phase,
            last_error: last_error.map(str::to_owned),
            ..example(name)
        };
        vec![
            server("Files", PhaseName::Ready, None),
            server("lazy", PhaseName::Idle, None),
            server("gone", PhaseName::Waiting, Some("program 'gone' was not found")),
            server(
                "old",
                PhaseName::Waiting,
                Some("goes on as it was configured before: /etc/mcp.json:3:4: the environment variable `X` is not set"),
            ),
        ]
    }

    fn problems(&self) -> Vec<String> {
        vec!["mcp.json:3:4: `bad` is left out: `command` is no program".to_owned()]
    }

    fn restart(&self, _: &str) -> bool {
        false
    }
}

#[tokio::test]
async fn a_required_server_that_takes_no_calls_blocks_and_left_out_ones_are_reported() {
    let (_bus, state) = watch::channel(good());
    let several = |required: &[&str]| {
        let required_servers = required.iter().map(|name| (*name).to_owned()).collect();
        let sources = sources(state.clone(), Registry::new());
        Health::new(HealthSources { required_servers, servers: Arc::new(Several), ..sources })
    };
    assert!(several(&[]).readiness().ready, "no server is required");
    let health = several(&["files", "lazy", "gone", "bad"]);
    let blocked_by = json!([
        {"reason": "mcp_server_not_ready", "server": "gone", "phase": "waiting", "detail": "program 'gone' was not found"},
        {"reason": "mcp_server_missing", "server": "bad"},
    ]);
    assert_eq!(serde_json::to_value(health.readiness()).unwrap(), json!({"ready": false, "blockedBy": blocked_by}));
    assert_eq!(health.status().mcp_problems, Several.problems());
}

#[tokio::test]
async fn mistakes_of_the_configuration_are_not_public() {
    let (_bus, state) = watch::channel(good());
    let required_servers = ["gone", "old"].map(str::to_owned).to_vec();
    let sources = sources(state, Registry::new());
    let health = Health::new(HealthSources { required_servers, servers: Arc::new(Several), ..sources });
    let (readiness, status) = (health.readiness(), health.status());
    for whole in [serde_json::to_string(&readiness).unwrap(), serde_json::to_string(&status).unwrap()] {
        assert!(whole.contains("/etc/mcp.json:3:4: the environment variable `X`"), "{whole}");
    }
    let short = "goes on as it was configured before: `toolbus status` says why";
    for public in
        [serde_json::to_string(&readiness.public()).unwrap(), serde_json::to_string(&status.public()).unwrap()]
    {
        assert!(!public.contains("mcp.json") && !public.contains("`X`") && public.contains(short), "{public}");
        assert!(public.contains("program 'gone' was not found"), "{public}");
    }
}
