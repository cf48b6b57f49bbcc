#!/usr/bin/env python3
"""Checks the files for containers and monitoring against each other, the binary and docs/telemetry.md.

No container engine is needed, and none is asked. Run by tests/run, which sets TOOLBUS_BIN.
"""

import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
sys.path.insert(0, str(ROOT / "tools"))
import dashboards


def read_yaml(path: Path):
    return yaml.safe_load(path.read_text("utf-8"))


COMPOSE = read_yaml(ROOT / "docker-compose.yml")
SERVICES = COMPOSE["services"]
# Laid over the first.
FULL = read_yaml(ROOT / "docker-compose.full.yml")
DAEMON = tomllib.loads((DEPLOY / "toolbus.toml").read_text("utf-8"))
COLLECTOR = read_yaml(DEPLOY / "otel-collector/config.yaml")
PROMETHEUS = read_yaml(DEPLOY / "prometheus/prometheus.yml")
ALERTS = read_yaml(DEPLOY / "prometheus/alerts.yml")
RUNBOOKS = {path.stem: path.read_text("utf-8") for path in sorted((ROOT / "docs/runbooks").glob("*.md"))}
SOURCES = read_yaml(DEPLOY / "grafana/provisioning/datasources/datasources.yaml")["datasources"]
BROKER = dict(
    (part.strip() for part in line.split("=", 1))
    for line in (DEPLOY / "rabbitmq/rabbitmq.conf").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
)
DASHBOARDS = {path.name: json.loads(path.read_text("utf-8")) for path in (DEPLOY / "grafana/dashboards").glob("*.json")}
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")

# Ports that the images of others listen on.
KNOWN_PORTS = {"rabbitmq": {5672, 15672}, "jaeger": {4317, 16686}, "prometheus": {9090}, "grafana": {3000}}


def port(address: str) -> int:
    return int(address.rpartition(":")[2])


def listened_on(service: str) -> set[int]:
    """The ports that a service listens on, by its own configuration."""
    if service == "toolbus":
        return {port(DAEMON["http"]["listen"])}
    if service == "openrouter-mcp":
        command = SERVICES[service]["command"]
        return {port(command[command.index("--listen") + 1])}
    if service == "otel-collector":
        protocols = COLLECTOR["receivers"]["otlp"]["protocols"].values()
        return {port(protocol["endpoint"]) for protocol in protocols} | {
            port(COLLECTOR["exporters"]["prometheus"]["endpoint"])
        }
    return KNOWN_PORTS[service]


def mounts(service: str, compose=COMPOSE) -> dict[str, str]:
    """Sources of a service's mounts, by target."""
    volumes = (volume.split(":") for volume in compose["services"][service].get("volumes", []))
    return {target: source for source, target, *_ in volumes}


def in_container(service: str, path: str, compose=COMPOSE) -> Path:
    """The file of this repository that a service sees at `path`."""
    for target, source in (mounts(service) | mounts(service, compose)).items():
        if path == target or path.startswith(target + "/"):
            return ROOT / source / path[len(target) :].lstrip("/")
    raise AssertionError(f"{service}: nothing is mounted at {path}")


def documented_series() -> dict[str, set[str]]:
    """Names of the series of each metric, as Prometheus sees what docs/telemetry.md promises."""
    units = {"ms": "_milliseconds", "s": "_seconds", "By": "_bytes"}
    row = re.compile(r"^\| `([a-z0-9_.]+)` \| (histogram|counter|up-down counter|gauge) \| `([^`]+)` \|", re.MULTILINE)
    series = {}
    for metric, kind, unit in row.findall((ROOT / "docs/telemetry.md").read_text("utf-8")):
        name = metric.replace(".", "_") + units.get(unit, "")
        if kind == "histogram":
            series[metric] = {name + suffix for suffix in ("_bucket", "_sum", "_count")}
        elif kind == "counter":
            series[metric] = {name + "_total"}
        else:
            series[metric] = {name + ("_ratio" if unit == "1" else "")}
    return series


def documented_metrics() -> set[str]:
    return set().union(*documented_series().values())


def panels(dashboard: dict) -> list[dict]:
    """The panels that show something; a row is a heading."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def unknown(written, read, path: str = ""):
    """Paths of what is written, and not read."""
    if isinstance(written, dict) and isinstance(read, dict):
        for key, value in written.items():
            yield from unknown(value, read.get(key), f"{path}.{key}")
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for number, pair in enumerate(zip(written, read)):
            yield from unknown(*pair, f"{path}[{number}]")
    elif written != read:
        yield f"{path}: {written}, read as {read}"


def targets() -> list[dict]:
    """The queries of all dashboards."""
    return [target for dashboard in DASHBOARDS.values() for panel in panels(dashboard) for target in panel["targets"]]


def metrics_in(expression: str) -> set[str]:
    """Names of the series that an expression of PromQL reads."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", bare)
    bare = re.sub(r"\b(?:by|without)\s*\([^)]*\)", "", bare)
    return set(re.findall(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b(?!\s*\()", bare))


class Compose(unittest.TestCase):
    def test_every_mounted_path_exists_and_every_volume_is_declared(self):
        for compose in (COMPOSE, FULL):
            for service in compose["services"]:
                for target, source in mounts(service, compose).items():
                    if source.startswith("."):
                        self.assertTrue((ROOT / source).exists(), f"{service}: {source}")
                    else:
                        self.assertIn(source, compose["volumes"], f"{service}: {target}")

    def test_every_mounted_file_is_in_use(self):
        used = {path for service in SERVICES for path in mounts(service).values()}
        used |= set(mounts("toolbus", FULL).values()) | {Full.security("seccomp")}
        # An operator applies them to a broker or a cluster; tools/release puts others into packages.
        files = ("rabbitmq/definitions.json", "rabbitmq/remote.json", "kubernetes/scripts.yaml", "kubernetes/claims.yaml")
        by_hand = {DEPLOY / file for file in files}
        for file in DEPLOY.rglob("*"):
            relative = "./" + str(file.relative_to(ROOT))
            if file.is_file() and file not in by_hand and DEPLOY / "packages" not in file.parents:
                self.assertTrue(any(relative == path or relative.startswith(path + "/") for path in used), relative)

    def test_dependencies_are_services_and_those_waited_for_have_a_health_check(self):
        for name, service in SERVICES.items():
            dependencies = service.get("depends_on", {})
            for dependency in dependencies:
                self.assertIn(dependency, SERVICES, name)
                wanted = dependencies[dependency].get("condition") if isinstance(dependencies, dict) else None
                if wanted == "service_healthy":
                    self.assertIn("healthcheck", SERVICES[dependency], dependency)

    def test_ports_are_open_to_this_machine_alone_and_lead_to_a_listener(self):
        taken = set()
        for name, service in SERVICES.items():
            for published in service.get("ports", []):
                address, outside, inside = published.split(":")
                self.assertEqual(address, "127.0.0.1", name)
                self.assertIn(int(inside), listened_on(name), name)
                self.assertNotIn(outside, taken, name)
                taken.add(outside)

    def test_images_are_pinned(self):
        for name, service in SERVICES.items():
            if "image" in service:
                _, colon, tag = service["image"].partition(":")
                self.assertTrue(colon and tag != "latest", name)

    def test_arguments_name_files_that_are_mounted(self):
        for name, service in SERVICES.items():
            for argument in service.get("command", []):
                path = argument.partition("=")[2] or argument
                if path.startswith("/"):
                    self.assertTrue(in_container(name, path).is_file(), f"{name}: {path}")


class Addresses(unittest.TestCase):
    def reaches(self, host: str | None, number: int | None):
        self.assertIn(host, SERVICES)
        self.assertIn(number, listened_on(str(host)), host)

    def test_the_daemon_reaches_broker_and_collector(self):
        broker, collector = urlsplit(DAEMON["bus"]["url"]), urlsplit(DAEMON["telemetry"]["otlp_endpoint"])
        self.reaches(broker.hostname, broker.port)
        environment = SERVICES[broker.hostname]["environment"]
        login = (environment["RABBITMQ_DEFAULT_USER"], environment["RABBITMQ_DEFAULT_PASS"])
        self.assertEqual((broker.username, broker.password), login)
        self.reaches(collector.hostname, collector.port)
        self.assertEqual(collector.port, port(COLLECTOR["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"]))

    def test_the_collector_reaches_jaeger(self):
        host, _, number = COLLECTOR["exporters"]["otlp/jaeger"]["endpoint"].rpartition(":")
        self.reaches(host, int(number))

    def test_prometheus_reads_the_collector(self):
        exported = port(COLLECTOR["exporters"]["prometheus"]["endpoint"])
        targets = [
            target
            for job in PROMETHEUS["scrape_configs"]
            for group in job["static_configs"]
            for target in group["targets"]
        ]
        self.assertEqual(targets, [f"otel-collector:{exported}"])
        for file in PROMETHEUS["rule_files"]:
            self.assertTrue((DEPLOY / "prometheus" / file).is_file(), file)

    def test_grafana_reaches_its_sources(self):
        for source in SOURCES:
            url = urlsplit(source["url"])
            self.reaches(url.hostname, url.port)

    def test_grafana_finds_its_dashboards(self):
        providers = read_yaml(DEPLOY / "grafana/provisioning/dashboards/dashboards.yaml")["providers"]
        for provider in providers:
            self.assertTrue(in_container("grafana", provider["options"]["path"]).is_dir())
        home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        self.assertTrue(in_container("grafana", home).is_file())


class Broker(unittest.TestCase):
    LIMIT = int(BROKER["max_message_size"])

    def test_it_takes_every_message_of_the_daemon_and_none_that_is_much_larger(self):
        source = (ROOT / "crates/toolbus-core/src/reply/build.rs").read_text("utf-8")
        mib, less_kib = re.search(r"const MAX_REPLY: usize = (\d+) \* 1024 \* 1024 - (\d+) \* 1024;", source).groups()
        largest_reply = int(mib) * 1024 * 1024 - int(less_kib) * 1024
        self.assertLess(largest_reply, self.LIMIT)
        self.assertLess(self.LIMIT, 2 * largest_reply)

    def test_it_takes_every_request_that_the_daemon_reads(self):
        shipped = tomllib.loads((ROOT / "config/toolbus.toml").read_text("utf-8"))
        for configuration in (shipped, DAEMON):
            body = configuration.get("invoke", {}).get("max_body", shipped["invoke"]["max_body"])
            number, unit = re.fullmatch(r"(\d+)(KiB|MiB)", body).groups()
            self.assertLessEqual(int(number) * {"KiB": 1024, "MiB": 1024 * 1024}[unit], self.LIMIT)

    def test_operators_are_told_the_same(self):
        told = re.findall(r"max_message_size = (\d+)", (ROOT / "docs/rabbitmq.md").read_text("utf-8"))
        self.assertTrue(told)
        self.assertEqual({int(number) for number in told}, {self.LIMIT})

    def test_it_reads_the_file_after_its_own(self):
        read = {target: source for target, source in mounts("rabbitmq").items() if source.endswith(".conf")}
        self.assertEqual(read, {"/etc/rabbitmq/conf.d/30-toolbus.conf": "./deploy/rabbitmq/rabbitmq.conf"})


class Collector(unittest.TestCase):
    def test_pipelines_use_every_part_that_is_defined_and_no_other(self):
        pipelines = COLLECTOR["service"]["pipelines"].values()
        for kind in ("receivers", "processors", "exporters"):
            used = {part for pipeline in pipelines for part in pipeline.get(kind, [])}
            self.assertEqual(used, set(COLLECTOR[kind]), kind)


class Metrics(unittest.TestCase):
    # Metrics on no panel, and why.
    NOT_SHOWN = {"toolbus.door.sessions": "the same as toolbus.mcp_server.sessions, until the next version"}

    def check(self, expression: str, where: str):
        found = metrics_in(expression)
        self.assertTrue(found, f"{where}: {expression}")
        self.assertLessEqual(found, documented_metrics(), f"{where}: not in docs/telemetry.md")

    def test_names_are_read_as_prometheus_reads_them(self):
        documented = documented_metrics()
        for name in (
            "rockbot_tool_invocations_total",
            "rockbot_tool_invoke_duration_milliseconds_bucket",
            "toolbus_overhead_duration_seconds_count",
            "toolbus_calls_in_flight",
        ):
            self.assertIn(name, documented)
        expression = 'sum by (tool_name) (rate(a_b_total{c_d="e_f"}[$__rate_interval])) / max_over_time(g_h[5m])'
        self.assertEqual(metrics_in(expression), {"a_b_total", "g_h"})

    def test_dashboards_are_those_that_their_program_writes(self):
        self.assertEqual(set(DASHBOARDS), set(dashboards.files()))
        for name, text in dashboards.files().items():
            current = (DEPLOY / "grafana/dashboards" / name).read_text("utf-8") == text
            self.assertTrue(current, f"{name}: run tools/dashboards.py")

    def test_dashboards_show_documented_metrics_of_provisioned_sources(self):
        kinds = {source["type"] for source in SOURCES}
        for name, dashboard in DASHBOARDS.items():
            source, *variables = dashboard["templating"]["list"]
            self.assertEqual((source["type"], source["name"]), ("datasource", "datasource"), name)
            self.assertIn(source["query"], kinds, name)
            chosen = "${%s}" % source["name"]
            for variable in (one for one in variables if one["type"] == "query"):
                query = variable["query"]["query"]
                self.check(re.fullmatch(r"label_values\((\w+), \w+\)", query)[1], f"{name}: {variable['name']}")
            for panel in panels(dashboard):
                self.assertEqual(panel["datasource"]["uid"], chosen, panel["title"])
                for target in panel["targets"]:
                    self.assertEqual(target["datasource"]["uid"], chosen, panel["title"])
                    if "ALERTS{" not in target["expr"]:  # a series of Prometheus' own
                        self.check(target["expr"], f"{name}: {panel['title']}")

    def test_every_documented_metric_is_on_a_panel(self):
        shown = set().union(*(metrics_in(target["expr"]) for target in targets()))
        hidden = {metric: names for metric, names in documented_series().items() if not names & shown}
        self.assertEqual(set(hidden), set(self.NOT_SHOWN))

    def test_panels_explain_themselves_in_a_sentence_and_have_a_unit(self):
        for name, dashboard in DASHBOARDS.items():
            titles = [panel["title"] for panel in panels(dashboard)]
            self.assertEqual(len(set(titles)), len(titles), name)
            for panel in panels(dashboard):
                self.assertRegex(panel["description"], r"^[A-Z][^.]*(?:\.\w[^.]*)*\.$", f"{name}: {panel['title']}")
                self.assertTrue(panel["fieldConfig"]["defaults"]["unit"], f"{name}: {panel['title']}")

    def test_dashboards_lead_to_each_other_and_to_jaeger(self):
        [published] = SERVICES["jaeger"]["ports"]
        self.assertEqual(len({dashboard["uid"] for dashboard in DASHBOARDS.values()}), len(DASHBOARDS))
        for name, dashboard in DASHBOARDS.items():
            others, jaeger = dashboard["links"]
            self.assertEqual((others["type"], others["tags"]), ("dashboards", dashboard["tags"]), name)
            variable = dashboard["templating"]["list"][-1]
            self.assertEqual(jaeger["url"], "${%s}" % variable["name"], name)
            self.assertEqual(variable["query"], f"http://{published.rpartition(':')[0]}", name)

    def test_grafana_knows_every_key_of_a_dashboard(self):
        plugins.register_default_plugins()
        for name, dashboard in DASHBOARDS.items():
            read = json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))
            self.assertEqual(list(unknown(dashboard, read)), [], name)

    def test_log_links_open_lines_of_the_series_in_loki(self):
        for name, dashboard in DASHBOARDS.items():
            kinds = {one["name"]: one["query"] for one in dashboard["templating"]["list"] if one["type"] == "datasource"}
            links = [link for panel in panels(dashboard) for link in panel["fieldConfig"]["defaults"]["links"]]
            urls = [urlsplit(link["url"]) for link in links if link["url"].startswith("/explore?")]
            self.assertEqual(2 * len(urls), len(links), name)
            for url in urls:
                [pane] = json.loads(parse_qs(url.query)["panes"][0]).values()
                self.assertEqual(kinds[pane["datasource"].strip("${}")], "loki")
                self.assertEqual(pane["queries"][0]["expr"], '{service_name="${__field.labels.job}"}')

    def test_links_of_series_use_labels_that_the_series_have(self):
        linked = 0
        for name, dashboard in DASHBOARDS.items():
            for panel in panels(dashboard):
                for link in panel["fieldConfig"]["defaults"]["links"]:
                    wanted = set(re.findall(r"__field\.labels\.(\w+)", link["url"]))
                    for target in panel["targets"]:
                        grouped = set(re.search(r"\bby \(([^)]*)\)", target["expr"])[1].split(", "))
                        self.assertLessEqual(wanted, grouped, f"{name}: {panel['title']}")
                        linked += 1
        self.assertGreater(linked, 10)

    def test_panels_do_not_overlap(self):
        for name, dashboard in DASHBOARDS.items():
            cells = set()
            for panel in dashboard["panels"]:
                at = panel["gridPos"]
                own = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
                self.assertFalse(cells & own, f"{name}: {panel['title']}")
                self.assertLessEqual(at["x"] + at["w"], 24, f"{name}: {panel['title']}")
                cells |= own

    def test_alerts_read_documented_metrics_and_explain_themselves(self):
        rules = [rule for group in ALERTS["groups"] for rule in group["rules"]]
        self.assertEqual(len({rule["alert"] for rule in rules}), len(rules))
        for rule in rules:
            self.check(rule["expr"], rule["alert"])
            self.assertIn(rule["labels"]["severity"], {"warning", "critical"}, rule["alert"])
            annotations = rule["annotations"]
            self.assertEqual(set(annotations), {"summary", "description", "runbook_url"}, rule["alert"])
            self.assertEqual(annotations["runbook_url"], f"docs/runbooks/{rule['alert']}.md")


class Alerts(unittest.TestCase):
    UNIT_TESTS = ROOT / "tests/alerts.yml"

    def test_each_fires_when_it_should_and_not_before(self):
        command = ["promtool", "test", "rules", str(self.UNIT_TESTS)]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_each_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(self):
        cases = [case for test in read_yaml(self.UNIT_TESTS)["tests"] for case in test["alert_rule_test"]]
        alerts = {rule["alert"] for group in ALERTS["groups"] for rule in group["rules"]}
        self.assertEqual({case["alertname"] for case in cases if "exp_alerts" in case}, alerts)
        self.assertEqual({case["alertname"] for case in cases if "exp_alerts" not in case}, alerts)


class Runbooks(unittest.TestCase):
    HEADINGS = ("Callers notice", "Look first", "Do", "Wake someone")

    @staticmethod
    def blocks(text: str, language: str) -> list[str]:
        """The lines of all blocks of this language, without comments."""
        lines = "".join(re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)).splitlines()
        return [re.sub(r"\s+# .*", "", line) for line in lines]

    def test_each_alert_has_one_and_each_belongs_to_an_alert(self):
        alerts = {rule["alert"] for group in ALERTS["groups"] for rule in group["rules"]}
        self.assertEqual({file.name for file in (ROOT / "docs/runbooks").iterdir()}, {f"{name}.md" for name in alerts})

    def test_each_has_the_same_parts_and_is_read_in_a_minute(self):
        for name, text in RUNBOOKS.items():
            title, *headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
            self.assertEqual((title, tuple(headings)), (name, self.HEADINGS))
            self.assertLessEqual(len(text.splitlines()), 50, name)

    def test_queries_read_documented_metrics_and_prometheus_accepts_them(self):
        rules = []
        for name, text in RUNBOOKS.items():
            queries = self.blocks(text, "promql")
            self.assertTrue(queries, name)
            for query in queries:
                self.assertTrue(metrics_in(query) <= documented_metrics(), f"{name}: {query}")
                rules.append({"record": f"query:{len(rules)}", "expr": query})
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            yaml.safe_dump({"groups": [{"name": "runbooks", "rules": rules}]}, file)
            file.flush()
            command = ["promtool", "check", "rules", file.name]
            result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_commands_are_known_to_the_binary(self):
        for name, text in RUNBOOKS.items():
            inline = re.findall(r"`(toolbus [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
            for command in [line for line in self.blocks(text, "sh") if line.startswith("toolbus ")] + inline:
                words = shlex.split(command)[1:]
                # A command is its first words; names in capitals and options are what it is given.
                given = next((at for at, word in enumerate(words) if word.startswith("-") or word.isupper()), len(words))
                path = words[: min(given, 2 if words[0] in {"breaker", "dlq", "mcp", "pins"} else 1)]
                result = Binary().run_binary(*path, "--help-all")
                self.assertEqual(result.returncode, 0, f"{name}: {command}: {result.stderr}")
                for option in (word for word in words if word.startswith("--")):
                    self.assertIn(f"{option} ", result.stdout.replace("\n", " "), f"{name}: {command}")


class Image(unittest.TestCase):
    OPENROUTER = (ROOT / "crates/openrouter-mcp/Dockerfile").read_text("utf-8")
    # The service that runs an image, and the stage that makes it: the last one, or one by name.
    IMAGES = (
        ("toolbus", DOCKERFILE, "toolbus"),
        ("toolbus", DOCKERFILE, "full"),
        ("openrouter-mcp", OPENROUTER, None),
    )

    @staticmethod
    def instructions(dockerfile: str, name: str) -> list[str]:
        joined = dockerfile.replace("\\\n", " ")
        return re.findall(rf"^{name}\s+(.*)$", joined, re.MULTILINE)

    @staticmethod
    def stage(dockerfile: str, name: str | None) -> str:
        """The instructions of the stage of this name, or of the last one."""
        stages = re.split(r"^(?=FROM )", dockerfile, flags=re.MULTILINE)[1:]
        named = [stage for stage in stages if re.match(rf"FROM \S+ AS {name}\n", stage)]
        return named[0] if name else stages[-1]

    def test_it_is_built_with_the_pinned_compiler(self):
        toolchain = tomllib.loads((ROOT / "rust-toolchain.toml").read_text("utf-8"))["toolchain"]["channel"]
        for _, dockerfile, _ in self.IMAGES:
            version = re.fullmatch(r"rust:([\d.]+)-\w+ AS build", self.instructions(dockerfile, "FROM")[0])[1]
            self.assertTrue(toolchain == version or toolchain.startswith(version + "."), toolchain)

    def test_what_the_build_needs_is_sent_to_it(self):
        lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
        ignored = [line for line in lines if line and not line.startswith("#")]
        workspace = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]
        members = [path for member in workspace["members"] for path in ROOT.glob(member)]
        needed = ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml"] + [str(path.relative_to(ROOT)) for path in members]
        for path in needed:
            self.assertTrue((ROOT / path).exists(), path)
            top = path.split("/")[0]
            self.assertFalse([line for line in ignored if fnmatch.fnmatch(top, line)], path)

    def test_no_source_includes_a_file_that_is_left_out(self):
        lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
        for source in (ROOT / "crates").glob("*/src/**/*.rs"):
            text = source.read_text("utf-8").partition("#[cfg(test)]")[0]
            for included in re.findall(r'include_(?:str|bytes)!\(\s*"([^"]+)"', text):
                if "tests" in source.stem or "tests" in source.parts:
                    continue
                path = (source.parent / included).resolve().relative_to(ROOT)
                self.assertNotIn(path.parts[0], lines, f"{source}: {included}")

    def test_it_runs_without_rights_and_says_its_port(self):
        for service, dockerfile, stage in self.IMAGES:
            instructions = self.stage(dockerfile, stage)
            self.assertEqual(self.instructions(instructions, "USER"), ["65532:65532"])
            exposed = {int(number) for number in self.instructions(instructions, "EXPOSE")}
            self.assertEqual(exposed, listened_on(service))

    def test_stages_copy_what_was_built(self):
        for _, dockerfile, stage in self.IMAGES:
            instructions = self.stage(dockerfile, stage)
            built = re.search(r"cp \S+ (\S+)", self.instructions(dockerfile, "RUN")[0])[1]
            copied = re.fullmatch(r"--from=build (\S+) (\S+)", self.instructions(instructions, "COPY")[-1])
            self.assertEqual(copied[1], built)
            self.assertEqual(json.loads(self.instructions(instructions, "ENTRYPOINT")[0]), [copied[2]])

    def test_the_first_image_is_what_a_build_without_a_target_makes(self):
        self.assertEqual(self.stage(DOCKERFILE, "toolbus"), self.stage(DOCKERFILE, None))

    def test_both_images_are_started_and_checked_alike(self):
        for name in ("HEALTHCHECK", "ENTRYPOINT", "CMD"):
            full, plain = (self.instructions(self.stage(DOCKERFILE, stage), name) for stage in ("full", "toolbus"))
            self.assertEqual(full, plain)

    def test_base_images_are_pinned(self):
        for dockerfile in (DOCKERFILE, self.OPENROUTER):
            for image in self.instructions(dockerfile, "FROM"):
                self.assertRegex(image, r"^\S+:(?!latest)\S+")


class Full(unittest.TestCase):
    """`toolbus-full` and what docker-compose.full.yml makes of it."""

    SERVICE = FULL["services"]["toolbus"]
    STAGE = Image.stage(DOCKERFILE, "full")
    CONFIGURATION = tomllib.loads((DEPLOY / "full.toml").read_text("utf-8"))

    @classmethod
    def security(cls, kind: str) -> str:
        options = dict(option.split(":", 1) for option in cls.SERVICE["security_opt"])
        return options[kind]

    def test_the_target_is_a_stage(self):
        self.assertEqual(self.SERVICE["build"]["target"], "full")

    def test_the_home_is_a_volume_and_temporary_files_may_be_run(self):
        environment = dict(item.split("=", 1) for item in Image.instructions(self.STAGE, "ENV")[0].split())
        home = environment["HOME"]
        self.assertEqual(Image.instructions(self.STAGE, "VOLUME"), [home])
        self.assertEqual(Image.instructions(self.STAGE, "WORKDIR"), [home])
        self.assertIn(f"--uid 65532 --gid 65532 --home-dir {home} --create-home", DOCKERFILE)
        self.assertEqual(mounts("toolbus", FULL)[home], "toolbus")
        self.assertTrue(self.CONFIGURATION["script"]["packages"]["cache"].startswith(home + "/"))
        [temporary] = self.SERVICE["tmpfs"]
        path, _, options = temporary.partition(":")
        self.assertEqual(path, environment["TMPDIR"])
        self.assertIn("exec", options.split(","))

    def test_it_has_the_programs_that_its_servers_are_started_with(self):
        [checked] = re.findall(r"for program in (.*?); do", self.STAGE)
        servers = json.loads((DEPLOY / "mcp.json").read_text("utf-8"))["mcpServers"]
        self.assertEqual({server["command"] for server in servers.values()}, {"uvx", "npx"})
        self.assertEqual(set(checked.split()), {"python3", "uv", "uvx", "node", "npm", "npx"})

    def test_files_that_the_command_and_the_configuration_name_are_mounted(self):
        named = [argument for argument in self.SERVICE["command"] if argument.startswith("/")]
        for path in [*named, self.CONFIGURATION["mcp"]["servers_file"]]:
            self.assertTrue(in_container("toolbus", path, FULL).is_file(), path)

    def test_the_profile_lets_a_sandbox_be_made_and_refuses_what_none_needs(self):
        profile = json.loads((ROOT / self.security("seccomp")).read_text("utf-8"))
        self.assertEqual((profile["defaultAction"], profile["defaultErrnoRet"]), ("SCMP_ACT_ERRNO", 38))
        self.assertEqual({rule["action"] for rule in profile["syscalls"]}, {"SCMP_ACT_ALLOW"})
        everywhere = profile["syscalls"][0]["names"]
        self.assertEqual(everywhere, sorted(set(everywhere)))
        needed = "clone clone3 unshare mount umount2 pivot_root fsopen fsconfig fsmount move_mount open_tree sethostname"
        self.assertLessEqual({*needed.split(), "landlock_restrict_self", "seccomp"}, set(everywhere))
        refused = "add_key bpf init_module io_uring_setup kexec_load keyctl open_by_handle_at perf_event_open ptrace reboot"
        self.assertFalse({*refused.split(), "process_vm_readv", "swapon", "userfaultfd"} & set(everywhere))

    def test_the_configuration_is_accepted(self):
        files = ("toolbus.toml", "full.toml")
        options = [option for file in files for option in ("--config", str(DEPLOY / file))]
        result = Binary().run_binary("check", *options, "--set", f"mcp.servers_file={DEPLOY / 'mcp.json'}")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


class Kubernetes(unittest.TestCase):
    """What the runner of scripts in pods needs of a cluster."""

    CRATE = ROOT / "crates/toolbus-kubernetes/src"
    # By its file, for each kind: what it makes for a script, what it watches beside that, files of the code that are
    # another kind's, and rights of other files that it does not use.
    KINDS = {
        "scripts.yaml": ("pods", set(), {"claim.rs", "exec.rs"}, set()),
        # A claimed pod is watched, and its log is not read.
        "claims.yaml": ("sandboxclaims", {"pods"}, set(), {("pods/log", "get")}),
    }
    GROUPS = {"sandboxclaims": "extensions.agents.x-k8s.io", "sandboxes": "agents.x-k8s.io"}

    @staticmethod
    def objects(file: str) -> dict:
        return {
            document["kind"]: document for document in yaml.safe_load_all((DEPLOY / "kubernetes" / file).read_text("utf-8"))
        }

    def rights(self, file: str) -> set:
        """Resources and verbs that the code of a kind uses."""
        made, watched, others, not_used = self.KINDS[file]
        used = set()
        for source in self.CRATE.glob("*.rs"):
            if source.name in others:
                continue
            text = source.read_text("utf-8").partition("#[cfg(test)]")[0]
            used |= {(resource, verb) for verb, resource in re.findall(r'about_part\("(\w+)", "([\w/]+)"\)', text)}
            for verb in re.findall(r'about\("(\w+)"\)', text):
                used |= {(resource, verb) for resource in ({made} | watched if source.name == "watch.rs" else {made})}
        if file == "claims.yaml":
            # Its pod is got by name; a WebSocket begins with GET, which clusters ask about in one way or the other.
            used |= {("sandboxes", "get"), ("pods/exec", "get")}
        return used - not_used

    def test_the_role_has_the_rights_that_the_runner_uses_and_no_others(self):
        for file in self.KINDS:
            given = set()
            for rule in self.objects(file)["Role"]["rules"]:
                for resource in rule["resources"]:
                    self.assertEqual(rule["apiGroups"], [self.GROUPS.get(resource, "")], resource)
                    given |= {(resource, verb) for verb in rule["verbs"]}
            self.assertEqual(given, self.rights(file), file)

    def test_everything_is_in_the_namespace_that_the_configuration_has_by_default(self):
        template = (ROOT / "config/toolbus.toml").read_text("utf-8")
        for file in self.KINDS:
            objects = self.objects(file)
            name = objects.pop("Namespace")["metadata"]["name"]
            self.assertIn(f'#namespace = "{name}"', template)
            for kind, object in objects.items():
                self.assertEqual(object["metadata"]["namespace"], name, f"{file}: {kind}")
            self.assertEqual(objects["RoleBinding"]["roleRef"]["name"], objects["Role"]["metadata"]["name"])

    def test_pods_have_no_network(self):
        for file in self.KINDS:
            policy = self.objects(file)["NetworkPolicy"]["spec"]
            self.assertEqual(policy, {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}, file)
        # Policies add up: one that the controller makes would let sandboxes out.
        template = self.objects("claims.yaml")["SandboxTemplate"]["spec"]
        self.assertEqual(template["networkPolicyManagement"], "Unmanaged")

    def test_the_pool_has_the_template_and_the_name_of_the_documented_configuration(self):
        objects = self.objects("claims.yaml")
        pool, template = objects["SandboxWarmPool"], objects["SandboxTemplate"]
        self.assertEqual(pool["spec"]["sandboxTemplateRef"], {"name": template["metadata"]["name"]})
        documented = (ROOT / "config/toolbus.toml").read_text("utf-8")
        self.assertIn(f'#warm_pool = "{pool["metadata"]["name"]}"', documented)
        versions = {object["apiVersion"] for object in (pool, template)}
        source = (self.CRATE / "claim.rs").read_text("utf-8")
        constant = {name: re.search(rf'const {name}: &str = "(.+)";', source)[1] for name in ("CLAIM_GROUP", "VERSION")}
        self.assertEqual(versions, {f"{constant['CLAIM_GROUP']}/{constant['VERSION']}"})

    def test_a_sandbox_is_confined_as_a_pod_is(self):
        snapshot = re.search(r'@r#"\n(.*?)\n *"#\);', (self.CRATE / "pod.rs").read_text("utf-8"), re.DOTALL)[1]
        pod = json.loads(snapshot)["spec"]
        sandbox = self.objects("claims.yaml")["SandboxTemplate"]["spec"]["podTemplate"]["spec"]
        # A sandbox waits for its script, without a deadline and a program of its own.
        (made,), (given,) = pod.pop("containers"), sandbox.pop("containers")
        del pod["activeDeadlineSeconds"], made["args"], made["command"], made["env"], given["command"]
        for key in ("fsGroup", "runAsGroup", "runAsUser"):
            self.assertGreaterEqual(sandbox["securityContext"].pop(key), 100_000)
            del pod["securityContext"][key]

        def mebibytes(text: str) -> int:
            return int(text.removesuffix("Mi")) << 20

        limits = given["resources"]["limits"]
        for key in ("memory", "ephemeral-storage"):
            limits[key] = str(mebibytes(limits[key]))
        # There is no log.
        self.assertLess(int(limits.pop("ephemeral-storage")), 100 << 20)
        del made["resources"]["limits"]["ephemeral-storage"]
        for volume in sandbox["volumes"]:
            volume["emptyDir"]["sizeLimit"] = str(mebibytes(volume["emptyDir"]["sizeLimit"]))
        self.assertEqual((sandbox, given), (pod, made))

    def test_the_image_has_the_runner(self):
        self.assertIn("--features kubernetes", DOCKERFILE)


class Packages(unittest.TestCase):
    """The service that packages install."""

    def test_systemd_knows_every_setting_and_rates_the_service_as_confined(self):
        with tempfile.TemporaryDirectory() as folder:
            unit = Path(folder) / "toolbus.service"
            text = (DEPLOY / "packages/toolbus.service").read_text("utf-8")
            unit.write_text(text.replace("/usr/bin/toolbus", "/bin/true"), "utf-8")
            scripts = Path(folder) / "toolbus.service.d/scripts.conf"
            scripts.parent.mkdir()
            for more, exposure in [(None, 2.0), (DEPLOY / "packages/scripts.conf", 3.5)]:
                if more:
                    scripts.write_text(more.read_text("utf-8"), "utf-8")
                with self.subTest(more):
                    found = self.analyze("verify", "--man=no", str(unit))
                    # This version may be older than a setting, which it then ignores.
                    told = [line for line in found.splitlines() if "DelegateSubgroup" not in line]
                    self.assertEqual(told, [])
                    rated = self.analyze("security", "--offline=true", str(unit))
                    level = re.search(r"Overall exposure level for toolbus.service: ([\d.]+)", rated)
                    self.assertLessEqual(float(level[1]), exposure)

    def analyze(self, *arguments: str) -> str:
        environment = {**os.environ, "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": "cat"}
        command = ["systemd-analyze", *arguments]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        return result.stdout + result.stderr

    def test_the_configuration_is_accepted(self):
        command = [os.environ["TOOLBUS_BIN"], "check", "--config", str(DEPLOY / "packages/toolbus.toml")]
        result = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60)
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)


class Binary(unittest.TestCase):
    """What the files ask of the binary."""

    def run_binary(self, *arguments: str):
        command = [os.environ["TOOLBUS_BIN"], *arguments]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    def test_the_configuration_is_accepted(self):
        result = self.run_binary("check", "--config", str(DEPLOY / "toolbus.toml"))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_the_configuration_lies_where_the_binary_looks(self):
        self.assertEqual(in_container("toolbus", "/etc/toolbus/toolbus.toml"), DEPLOY / "toolbus.toml")

    def test_the_health_check_is_a_command_and_fails_without_a_daemon(self):
        check = re.search(r"^HEALTHCHECK.* CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
        arguments = json.loads(check[1])[1:]
        self.assertEqual(self.run_binary(*arguments, "--help").returncode, 0)
        # Nothing listens on port 1 of loopback.
        result = self.run_binary(*arguments, "--listen", "127.0.0.1:1")
        self.assertNotEqual(result.returncode, 0, result.stdout)

    def test_the_default_command_exists(self):
        arguments = json.loads(re.search(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)[1])
        self.assertEqual(self.run_binary(*arguments, "--help").returncode, 0)


if __name__ == "__main__":
    unittest.main()
