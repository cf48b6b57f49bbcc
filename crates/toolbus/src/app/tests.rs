//! A daemon with every section: its tools under each profile, and its queues with dead letters.

mod added_family;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;
use toolbus_agents::a2a::A2aConfig;
use toolbus_core::bus::Ownership;
use toolbus_core::policy::{Profile, ProfileRole};
use toolbus_core::tool::{Effect, ToolDescriptor};
use toolbus_mcp_client::model_tools;
use toolbus_mcp_client::servers::ServerControl;

use super::*;
use crate::config::mcp::MANAGEMENT_TOOLS;
use crate::config::{BusConfig, BusUrl, RestConfig, ToolsConfig};
use crate::dead_letters;
use crate::families::{FamilyContext, Purpose};

/// A configuration with every section that brings tools. It names every section, so that a new one belongs here, too.
fn everything(folder: &std::path::Path) -> Config {
    let Config {
        bus,
        invoke,
        daemon,
        http,
        telemetry,
        store,
        ledger,
        memory: _,
        schedule: _,
        guides: _,
        a2a: _,
        pipelines: _,
        subagents: _,
        results,
        breaker,
        audit,
        tools: _,
        rest: _,
        web: _,
        egress,
        identity,
        agents,
        outbound,
        toolsets,
        mcp: _,
        pins,
        script: _,
        commands: _,
        given,
        origins,
    } = Config::default();
    let endpoint = json!({"name": "get_weather", "description": "Weather", "url": "https://weather.example/"});
    let specification = folder.join("spec.json");
    let text = json!({"openapi": "3.1.0", "servers": [{"url": "https://pets.example"}], "paths": {"/": {"get": {"operationId": "pets"}}}});
    std::fs::write(&specification, text.to_string()).unwrap();
    let file = folder.join("endpoints.json");
    let text =
        json!({"RestTools": {"Endpoints": [{"Name": "get_note", "Description": "d", "UrlTemplate": "https://h/"}]}});
    std::fs::write(&file, text.to_string()).unwrap();
    let rest = json!({"rest": {"endpoints": [endpoint], "endpoints_file": file, "openapi": {"spec": {"file": specification}}}});
    let written = folder.join("rest.json");
    std::fs::write(&written, rest.to_string()).unwrap();
    let rest: RestConfig = Config::load(&Sources { files: vec![written], ..Sources::default() }).unwrap().config.rest;
    let section = |value: serde_json::Value| serde_json::from_value::<Config>(value).unwrap();
    let sections = section(json!({
        "memory": {}, "schedule": {}, "guides": {}, "a2a": {}, "pipelines": {}, "subagents": {},
        "web": {"search": [{"provider": "json", "url": "https://search.example/?q={query}"}]},
        "mcp": {"register": {"enabled": true}},
        "script": {"runner": "local", "local": {"i_understand": true}},
        "commands": [{"name": "list_files", "description": "Files", "command": ["ls"], "sandbox": false}]
    }));
    let Config { memory, schedule, guides, a2a, pipelines, subagents, web, mcp, script, commands, .. } = sections;
    let tools = ToolsConfig {
        echo: true,
        echo_effect: Effect::ReadOnly,
        time: true,
        search: true,
        required: Vec::new(),
        limits: Default::default(),
        definitions: Default::default(),
    };
    Config {
        bus,
        invoke,
        daemon,
        http,
        telemetry,
        store,
        ledger,
        memory,
        schedule,
        guides,
        a2a,
        pipelines,
        subagents,
        results,
        breaker,
        audit,
        tools,
        rest,
        web,
        egress,
        identity,
        agents,
        outbound,
        toolsets,
        mcp,
        pins,
        script,
        commands,
        given,
        origins,
    }
}

/// Every tool that a daemon of this configuration registers by itself.
async fn registered(config: &Config) -> Vec<Arc<ToolDescriptor>> {
    let policy = described(config).unwrap();
    let context = FamilyContext::description(config, policy.clone());
    let context = FamilyContext { purpose: Purpose::Command, ..context };
    let servers = AppServers::new(&context).unwrap().unwrap();
    let registrar = servers.registrar(config, Arc::clone(&context.store));
    let control: Arc<dyn ServerControl> = Arc::new(servers.bridge().clone());
    let of_servers = model_tools::tools(&policy, control, context.invoker(), registrar);
    let registry = policy.registry();
    registry.register_all(of_servers).unwrap();
    registry.snapshot().list()
}

#[tokio::test]
async fn each_profile_decides_about_every_tool_of_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let config = everything(folder.path());
    let tools = registered(&config).await;
    let known: BTreeSet<_> = config.tool_names().into_iter().chain(MANAGEMENT_TOOLS.map(Arc::from)).collect();
    assert_eq!(tools.iter().map(|tool| Arc::clone(&tool.name)).collect::<BTreeSet<_>>(), known);
    let letters = |tool: &ToolDescriptor| {
        let of_profile = |profile: &Profile| match profile.judge(&tool.name, tool.bare_name(), &tool.source) {
            ProfileRole::Allowed => 'x',
            ProfileRole::DeniedName | ProfileRole::DeniedSource | ProfileRole::NotAllowed => '-',
        };
        Profile::all().iter().map(of_profile).collect::<String>()
    };
    let names: Vec<String> = Profile::all().iter().map(|profile| profile.name().to_owned()).collect();
    let lines = tools.iter().map(|tool| format!("{} {} ({})", letters(tool), tool.name, tool.source));
    let table = std::iter::once(names.join(" ")).chain(lines).collect::<Vec<_>>().join("\n");
    insta::assert_snapshot!(table, @"
    main subagent scheduled a2a-synthesis
    xxx- cancel_agent_task (a2a)
    x-xx cancel_scheduled_task (scheduling)
    x--x cancel_subagent (subagent)
    xxxx convert_time (time)
    xxxx current_time (time)
    xxxx delete_from_working_memory (memory)
    xxxx echo (echo)
    xxxx execute_python_script (script)
    xxx- get_agent_details (a2a)
    xxx- get_agent_task (a2a)
    xxxx get_from_working_memory (memory)
    xxxx get_note (rest)
    xxxx get_tool_guide (guides)
    xxxx get_weather (rest)
    xxx- invoke_agent (a2a)
    xxxx list_files (command)
    xxx- list_known_agents (a2a)
    xxxx list_scheduled_tasks (scheduling)
    x--x list_subagents (subagent)
    xxxx list_tool_guides (guides)
    xxxx list_working_memory (memory)
    xxxx mcp_get_service_details (mcp:management)
    xxxx mcp_invoke_tool (mcp:management)
    xxxx mcp_list_services (mcp:management)
    x--x mcp_register_server (mcp:management)
    x--x mcp_unregister_server (mcp:management)
    xxxx pets (rest)
    xxxx save_to_working_memory (memory)
    xxxx schedule_task (scheduling)
    xxxx search_known_services (service-search)
    xxxx search_tools (service-search)
    xxxx search_working_memory (memory)
    x--x spawn_subagent (subagent)
    xxxx spawn_wisps (wisp)
    xxxx web_browse (web)
    xxxx web_search (web)
    xxxx whiteboard_list (whiteboard)
    xxxx whiteboard_read (whiteboard)
    xxxx whiteboard_write (whiteboard)
    ");
}

#[tokio::test]
async fn the_prefetch_of_tasks_is_that_of_calls() {
    let mut config = Config { bus: BusConfig { url: BusUrl::Embedded, ..BusConfig::default() }, ..Config::default() };
    config.a2a = Some(A2aConfig { announce: vec!["echo".to_owned()], ..A2aConfig::default() });
    let queues = subscriptions(&config).unwrap();
    let prefetch = |name| queues.iter().find(|queue| queue.queue == format!("toolbus.{name}")).unwrap().prefetch;
    assert_eq!(prefetch("tasks"), prefetch("invoke"));
    assert_eq!(usize::from(prefetch("tasks")), config.invoke.max_in_flight + config.invoke.max_waiting);
}

#[tokio::test]
async fn the_command_for_dead_letters_knows_every_queue_that_has_some() {
    let folder = tempfile::tempdir().unwrap();
    let mut config =
        Config { bus: BusConfig { url: BusUrl::Embedded, ..BusConfig::default() }, ..everything(folder.path()) };
    config.a2a.as_mut().unwrap().announce = vec!["echo".to_owned()];
    let prefix = format!("{}.", config.queue_prefix());
    let queues = subscriptions(&config).unwrap().into_iter();
    let with_dead_letters: BTreeSet<String> = queues
        .filter(|queue| matches!(queue.ownership, Ownership::Shared | Ownership::ShortLived))
        .map(|queue| queue.queue.strip_prefix(&prefix).unwrap().to_owned())
        .collect();
    assert_eq!(with_dead_letters, dead_letters::QUEUES.map(str::to_owned).into());
}
