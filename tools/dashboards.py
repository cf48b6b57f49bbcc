#!/usr/bin/env python3
"""Writes the dashboards for Grafana, deploy/grafana/dashboards/*.json: run it after a change.

A threshold is that of the alert about the same metric, if there is one. Panels of times link to traces.
"""

import json
from pathlib import Path

from grafana import dashboard, gauge, increase, of, panel, quantile, quantiles
from grafana import rate, ratio, row, traces_and_logs, variable, yes_or_no

FOLDER = Path(__file__).resolve().parent.parent / "deploy/grafana/dashboards"

CALLS = "rockbot_tool_invocations_total"
ANSWERED = "rockbot_tool_invoke_duration_milliseconds"
RAN = "gen_ai_execute_tool_duration_seconds"
TO_SERVERS = "mcp_client_operation_duration_seconds"
FROM_CLIENTS = "mcp_server_operation_duration_seconds"
FAILED = 'status=~"execution_failed|timeout"'
REFUSED = 'status=~"not_allowed|rate_limited|overloaded|tool_not_found|auth_required"'
THE_TOOL = 'tool_name=~"$tool"'
THE_AGENT = 'agent=~"$agent"'
THE_SERVER = 'toolbus_mcp_server=~"$server"'

OVERVIEW = dashboard(
    "toolbus",
    "Overview",
    "Whether calls are taken and answered, how fast, and what the daemons lack.",
    [],
    [
        yes_or_no("Ready", "Whether a request could be taken and answered.", "toolbus_broker_ready_ratio", 1),
        yes_or_no("Connected", "Whether both connections to the broker are open.", "toolbus_broker_connected_ratio", 1),
        yes_or_no("Broker blocked", "Whether the broker takes no messages.", "toolbus_broker_blocked_ratio", 0),
        yes_or_no("Store", "Whether the store can be reached and written.", "toolbus_store_available_ratio", 1),
        panel(
            "Firing alerts",
            "Alerts of Toolbus, each with a runbook of its name in docs/runbooks.",
            "short",
            ('max by (alertname) (ALERTS{alertname=~"Toolbus.+", alertstate="firing"})', "{{alertname}}"),
            kind="state-timeline",
            width=8,
            defaults={"color": {"mode": "fixed", "fixedColor": "red"}},
        ),
        row("Calls"),
        panel("Calls per second", "Answered requests, by how they ended.", "reqps", rate(CALLS, "status")),
        panel(
            "Error ratio",
            "Share of the calls whose tool failed or was too slow, without mistakes of callers.",
            "percentunit",
            ratio(CALLS, "job", FAILED),
            limit=0.2,
        ),
        panel(
            "Latency",
            "From the arrival of a request to its finished reply, the tool's time included.",
            "ms",
            quantiles(ANSWERED),
            links=traces_and_logs(),
        ),
        panel(
            "Overhead",
            "The part of a call's time that is the daemon's and not the tool's.",
            "s",
            quantiles("toolbus_overhead_duration_seconds"),
            limit=0.05,
            links=traces_and_logs(),
        ),
        row("Saturation"),
        panel(
            "Running and waiting",
            "Calls whose tools run, and calls that wait for a permit.",
            "short",
            gauge("toolbus_calls_in_flight", name="running"),
            gauge("toolbus_calls_waiting", name="waiting"),
            width=8,
        ),
        panel(
            "Longest wait for a permit",
            "How long the call has waited that has waited longest.",
            "s",
            gauge("toolbus_calls_waiting_age_seconds"),
            width=8,
            limit=10,
        ),
        panel(
            "Open breakers",
            "Endpoints, commands and MCP servers that get no calls because they fail, and how often that began.",
            "short",
            gauge("toolbus_breaker_open", name="open"),
            increase("toolbus_breaker_trips_total", "instance", name="opened"),
            width=8,
            limit=1,
        ),
        panel(
            "Requests in queues",
            "Messages that wait at the broker for a daemon.",
            "short",
            gauge("toolbus_queue_depth", "queue", function="max"),
            width=8,
        ),
        panel(
            "Age of requests",
            "How old a tenth of the requests is at least on arrival, by the clocks of sender and daemon.",
            "s",
            quantile(0.9, "toolbus_queue_age_seconds", "job, queue"),
            width=8,
            limit=60,
        ),
        panel(
            "Dead letters",
            "Messages that could not be answered or delivered.",
            "short",
            increase("toolbus_dead_letters_total", "instance, queue, reason"),
            width=8,
            limit=1,
        ),
        row("Broker"),
        panel(
            "Messages per second",
            "Requests taken, and replies published.",
            "mps",
            (rate("messaging_client_consumed_messages_total", "job")[0], "taken {{job}}"),
            (rate("messaging_client_sent_messages_total", "job")[0], "published {{job}}"),
            width=8,
        ),
        panel(
            "Publisher confirm latency",
            "From the publishing of a reply to the broker's confirm.",
            "s",
            quantiles("messaging_client_operation_duration_seconds"),
            width=8,
            links=traces_and_logs("publish reply"),
        ),
        panel(
            "Time of a message",
            "From the arrival of a message to its settlement.",
            "s",
            quantiles("messaging_process_duration_seconds"),
            width=8,
            links=traces_and_logs(),
        ),
        panel(
            "Replies that the broker did not take",
            "Replies that no queue takes, or that the broker refused.",
            "mps",
            rate("messaging_client_sent_messages_total", "job, error_type", 'error_type!=""'),
            width=8,
        ),
        panel(
            "Lost connections",
            "Connections to the broker that ended by themselves.",
            "short",
            increase("toolbus_broker_reconnects_total", "instance"),
            width=8,
        ),
        panel(
            "Telemetry lost",
            "Spans and log records that were dropped, and exports that failed.",
            "short",
            increase("toolbus_telemetry_dropped_spans_total", "instance", name="spans"),
            increase("toolbus_telemetry_dropped_logs_total", "instance", name="log records"),
            increase("toolbus_telemetry_failed_exports_total", "instance", name="exports"),
            width=8,
        ),
        row("Processes and configuration"),
        panel(
            "Processor",
            "Processors that a daemon uses, without its programs and scripts.",
            "short",
            rate("process_cpu_time_seconds_total", "instance, cpu_mode"),
            width=8,
        ),
        panel("Memory", "Physical memory of a daemon.", "bytes", gauge("process_memory_usage_bytes"), width=8),
        panel(
            "Descriptors and threads",
            "Open descriptors and threads of a daemon.",
            "short",
            gauge("process_unix_file_descriptor_count", name="descriptors"),
            gauge("process_thread_count", name="threads"),
            width=8,
        ),
        panel(
            "Reloads of the configuration",
            "Reloads that were applied, and those that were refused.",
            "short",
            increase("toolbus_config_reloads_total", "instance, outcome"),
            width=8,
        ),
        panel(
            "Replicas",
            "Replicas that share a store, by whether their configuration is the same.",
            "short",
            gauge("toolbus_replicas", "instance, configuration"),
            width=8,
        ),
        panel(
            "Other daemons on the broker",
            "Daemons that take the same calls under another configuration.",
            "short",
            gauge("toolbus_other_daemons", "instance, shares"),
            width=8,
            limit=1,
        ),
        panel(
            "Difference of clocks",
            "How much a daemon's clock differs from that of another daemon, or of Redis.",
            "s",
            (f"max by (instance, clock) (abs({of('toolbus_clock_skew_seconds')}))", "{{instance}} {{clock}}"),
            width=8,
            limit=5,
        ),
    ],
)

TOOLS = dashboard(
    "toolbus-tools",
    "Tools",
    "Which tools are called, fail or are slow, and what they reach.",
    [variable("tool", "Tool", CALLS, "tool_name")],
    [
        panel("Calls per second", "Answered requests, by tool.", "reqps", rate(CALLS, "tool_name", THE_TOOL)),
        panel(
            "Error ratio by tool",
            "Share of a tool's calls that failed or were too slow, without mistakes of callers.",
            "percentunit",
            ratio(CALLS, "tool_name", FAILED, THE_TOOL),
            limit=0.2,
        ),
        panel(
            "Latency by tool",
            "What 95 of 100 callers wait at most, by tool, the wait for a permit included.",
            "ms",
            quantile(0.95, ANSWERED, "job, tool_name", THE_TOOL),
            links=traces_and_logs("execute_tool ${__field.labels.tool_name}"),
        ),
        panel(
            "Time of the tool itself",
            "How long 95 of 100 runs of a tool take at most.",
            "s",
            quantile(0.95, RAN, "job, gen_ai_tool_name", 'gen_ai_tool_name=~"$tool"'),
            links=traces_and_logs("execute_tool ${__field.labels.gen_ai_tool_name}"),
        ),
        panel(
            "Permits held",
            "Calls of a tool that run at a time, on average: what the tool takes of the daemon's limit.",
            "short",
            rate(f"{RAN}_sum", "gen_ai_tool_name", 'gen_ai_tool_name=~"$tool"'),
        ),
        panel(
            "Why runs fail",
            "Runs without a result, by tool and cause.",
            "reqps",
            rate(f"{RAN}_count", "gen_ai_tool_name, error_type", 'gen_ai_tool_name=~"$tool", error_type!=""'),
        ),
        panel("Calls per second, by source", "Where the called tools come from.", "reqps", rate(CALLS, "tool_source")),
        panel(
            "Calls of unknown tools",
            "Requests for a name that no tool of the caller has.",
            "reqps",
            rate(CALLS, "agent", 'status="tool_not_found"'),
        ),
        row("Tools of other daemons"),
        panel(
            "Tool sets",
            "Tool sets whose tools other daemons list, by phase.",
            "short",
            gauge("toolbus_remote_sets", "instance, phase"),
        ),
        panel(
            "Age of the lists",
            "Time since another daemon said last which tools it has; it is asked every minute.",
            "s",
            gauge("toolbus_remote_list_age_seconds", "tool_source", function="max"),
            limit=300,
        ),
        row("Web"),
        panel(
            "Pages",
            "Pages that `web_browse` was asked for, by how that ended.",
            "reqps",
            rate("toolbus_web_fetches_total", "site, outcome"),
        ),
        panel(
            "Refused pages",
            "Pages that the egress rules refused.",
            "reqps",
            rate("toolbus_web_refusals_total", "reason"),
        ),
        panel(
            "Size of pages",
            "Size of pages without compression.",
            "bytes",
            quantiles("toolbus_web_page_size_bytes"),
        ),
        panel(
            "Searches",
            "Queries to search engines, by how they ended.",
            "reqps",
            rate("toolbus_web_searches_total", "provider, outcome"),
        ),
    ],
)

AGENTS = dashboard(
    "toolbus-agents",
    "Agents and policy",
    "Who calls, what is refused, what is quarantined, and how agents work together.",
    [variable("agent", "Agent", CALLS, "agent")],
    [
        panel("Calls per second", "Answered requests, by agent.", "reqps", rate(CALLS, "agent", THE_AGENT)),
        panel(
            "Refused calls",
            "Calls that did not run because of rules, limits or saturation, by agent.",
            "reqps",
            rate(CALLS, "agent, status", f"{THE_AGENT}, {REFUSED}"),
        ),
        panel(
            "Error ratio by agent",
            "Share of an agent's calls whose tool failed or was too slow.",
            "percentunit",
            ratio(CALLS, "agent", FAILED, THE_AGENT),
        ),
        panel(
            "Invalid arguments",
            "Share of an agent's calls whose arguments do not fit the tool: a model that is not told enough.",
            "percentunit",
            ratio(CALLS, "agent", 'status="invalid_arguments"', THE_AGENT),
        ),
        panel(
            "Latency by agent",
            "What 95 of 100 calls of an agent wait at most.",
            "ms",
            quantile(0.95, ANSWERED, "job, agent", THE_AGENT),
            links=traces_and_logs(),
        ),
        panel(
            "Calls per second, by agent and tool",
            "What each agent uses.",
            "reqps",
            rate(CALLS, "agent, tool_name", THE_AGENT),
        ),
        row("Pins"),
        panel(
            "Quarantined tools",
            "Tools that no agent has until an operator approves them.",
            "short",
            gauge("toolbus_pins_held", "tool_source", function="max"),
            limit=1,
        ),
        panel(
            "Changed definitions",
            "Definitions of tools that were not as they were.",
            "short",
            increase("toolbus_pins_changes_total", "tool_source"),
        ),
        row("MCP clients"),
        panel(
            "Requests per second",
            "Requests of MCP clients, by method.",
            "reqps",
            rate(f"{FROM_CLIENTS}_count", "mcp_method_name"),
            width=8,
        ),
        panel(
            "Time of their calls",
            "From a client's request for a tool to its response.",
            "s",
            quantiles(FROM_CLIENTS, where='mcp_method_name="tools/call"'),
            width=8,
            links=traces_and_logs(),
        ),
        panel(
            "Failed requests",
            "Requests of MCP clients without a result.",
            "reqps",
            rate(f"{FROM_CLIENTS}_count", "mcp_method_name, error_type", 'error_type!=""'),
            width=8,
        ),
        panel("Sessions", "Sessions of MCP clients.", "short", gauge("toolbus_mcp_server_sessions")),
        panel(
            "Length of sessions",
            "From a client's handshake to the end of its session.",
            "s",
            quantiles("mcp_server_session_duration_seconds"),
        ),
        row("Agents together"),
        panel(
            "Tasks",
            "Tasks that agents gave each other, at their end.",
            "short",
            increase("toolbus_a2a_tasks_total", "outcome"),
        ),
        panel(
            "Messages about tasks",
            "What agents say of their tasks, and what is ignored of it.",
            "short",
            increase("toolbus_a2a_answers_total", "outcome"),
        ),
        panel(
            "Announcements",
            "Agents that announce themselves, and announcements that are ignored.",
            "short",
            increase("toolbus_a2a_announcements_total", "outcome"),
        ),
        panel(
            "Reports of sub-agents",
            "Reports that were heard, and why one does not count.",
            "short",
            increase("toolbus_subagent_reports_total", "outcome"),
        ),
    ],
)

MCP_SERVERS = dashboard(
    "toolbus-mcp-servers",
    "MCP servers",
    "Which MCP servers run, fail or are slow, and whose tools need a look.",
    [variable("server", "Server", "toolbus_mcp_restarts_total", "toolbus_mcp_server")],
    [
        panel(
            "Servers by phase",
            "What the servers are doing; `parked` and `auth-required` need a person.",
            "short",
            gauge("toolbus_mcp_servers", "instance, phase"),
        ),
        panel(
            "Restarts",
            "Servers that were started again after they had ended by themselves.",
            "short",
            increase("toolbus_mcp_restarts_total", "job, toolbus_mcp_server", THE_SERVER),
            links=traces_and_logs("mcp start"),
        ),
        row("Calls"),
        panel(
            "Calls per second",
            "Calls of tools, by server.",
            "reqps",
            rate(f"{TO_SERVERS}_count", "toolbus_mcp_server", f'{THE_SERVER}, mcp_method_name="tools/call"'),
        ),
        panel(
            "Failed requests",
            "Requests without a result, by server and cause.",
            "reqps",
            rate(f"{TO_SERVERS}_count", "toolbus_mcp_server, error_type", f'{THE_SERVER}, error_type!=""'),
        ),
        panel(
            "Time of calls",
            "How long 95 of 100 calls of a server's tools take at most.",
            "s",
            quantile(0.95, TO_SERVERS, "job, toolbus_mcp_server", f'{THE_SERVER}, mcp_method_name="tools/call"'),
            links=traces_and_logs(),
        ),
        panel(
            "Time of calls, by tool",
            "How long 95 of 100 calls of a tool take at most.",
            "s",
            quantile(
                0.95, TO_SERVERS, "job, toolbus_mcp_server, gen_ai_tool_name", f'{THE_SERVER}, gen_ai_tool_name!=""'
            ),
            links=traces_and_logs("execute_tool ${__field.labels.gen_ai_tool_name}"),
        ),
        row("Connections"),
        panel(
            "Time of handshakes and lists",
            "How long 95 of 100 requests that are no calls take at most.",
            "s",
            quantile(0.95, TO_SERVERS, "job, mcp_method_name", f'{THE_SERVER}, mcp_method_name!="tools/call"'),
            width=8,
            links=traces_and_logs("mcp start"),
        ),
        panel(
            "Length of connections",
            "How long half of the connections last, by server.",
            "s",
            quantile(0.5, "mcp_client_session_duration_seconds", "toolbus_mcp_server", THE_SERVER),
            width=8,
        ),
        panel(
            "Lost connections",
            "Connections that were not closed in order.",
            "short",
            increase(
                "mcp_client_session_duration_seconds_count",
                "toolbus_mcp_server, error_type",
                f'{THE_SERVER}, error_type!=""',
            ),
            width=8,
        ),
        row("Trust"),
        panel(
            "Suspect tools",
            "Tools whose definitions look as if they tried to misuse the model.",
            "short",
            gauge("toolbus_mcp_suspects", "toolbus_mcp_server", where=THE_SERVER, function="max"),
            limit=1,
        ),
        panel(
            "Shadowed tools",
            "Tools that are called by their server alone, because another source has their names.",
            "short",
            gauge("toolbus_mcp_shadowed", "toolbus_mcp_server", where=THE_SERVER, function="max"),
            limit=1,
        ),
    ],
)

SCRIPTS = dashboard(
    "toolbus-scripts",
    "Scripts and store",
    "How scripts run and what they use, and what the ledger keeps.",
    [],
    [
        panel(
            "Scripts, by outcome",
            "Scripts that had their turn, by how they ended.",
            "short",
            increase("toolbus_script_runs_total", "outcome"),
        ),
        panel(
            "Running and waiting",
            "Scripts that run, and scripts that wait for their turn.",
            "short",
            gauge("toolbus_script_running", name="running"),
            gauge("toolbus_script_waiting", name="waiting"),
        ),
        panel(
            "Wait for a turn",
            "How long scripts wait until they run.",
            "s",
            quantiles("toolbus_script_queue_duration_seconds"),
        ),
        panel(
            "Time of scripts",
            "From a script's turn to its end, its packages included.",
            "s",
            quantiles("toolbus_script_duration_seconds"),
            links=traces_and_logs("execute_tool execute_python_script"),
        ),
        panel(
            "Time of scripts, by start",
            "How long 95 of 100 scripts take at most, by whether an interpreter was ready.",
            "s",
            quantile(0.95, "toolbus_script_duration_seconds", "start"),
        ),
        panel(
            "Interpreters and sessions",
            "Interpreters that wait for a script, and sessions that keep one.",
            "short",
            gauge("toolbus_script_warm", name="warm"),
            gauge("toolbus_script_sessions", name="sessions"),
        ),
        panel(
            "Processor time",
            "CPU time of all processes of a script.",
            "s",
            quantiles("toolbus_script_cpu_time_seconds"),
        ),
        panel(
            "Peak of memory",
            "The most memory that was seen of a script.",
            "bytes",
            quantiles("toolbus_script_memory_peak_bytes"),
        ),
        panel(
            "Sandbox level",
            "The level at which scripts and commands run.",
            "short",
            (f"max by (instance, level) ({of('toolbus_sandbox_level')}) > 0", "{{level}} {{instance}}"),
        ),
        row("Ledger"),
        panel(
            "Repeated requests and failures",
            "Requests that came again, and failures of the ledger: `failed` and `full` refuse calls.",
            "short",
            increase("toolbus_ledger_events_total", "instance, event"),
        ),
        panel(
            "Forgotten before their time",
            "Answered calls that the ledger forgot to make room; one that comes again is run again.",
            "short",
            increase("toolbus_ledger_shed_total", "instance"),
            limit=1,
        ),
        panel(
            "Entries",
            "Calls that the ledger knows; `ledger.max_entries` is the limit.",
            "short",
            gauge("toolbus_ledger_entries"),
            gauge("toolbus_ledger_entries_limit", name="limit", function="max"),
        ),
        panel(
            "Size",
            "What the ledger keeps of them; `ledger.max_size` is the limit.",
            "bytes",
            gauge("toolbus_ledger_size_bytes"),
            gauge("toolbus_ledger_size_limit_bytes", name="limit", function="max"),
        ),
    ],
)

DASHBOARDS = {"overview": OVERVIEW, "tools": TOOLS, "agents": AGENTS, "mcp-servers": MCP_SERVERS, "scripts": SCRIPTS}


def files() -> dict[str, str]:
    """The text of each file, by its name."""
    return {f"{name}.json": json.dumps(content, indent=2) + "\n" for name, content in DASHBOARDS.items()}


def main() -> None:
    for name, text in files().items():
        (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
