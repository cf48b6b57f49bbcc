"""Queries, panels and dashboards of Grafana, as tools/dashboards.py composes them.

A query is an expression of PromQL with the legend of its series.
"""

import json
from urllib.parse import quote

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Of Grafana's grid, and of a panel in it.
WIDTH, HEIGHT = 24, 8
GREEN, RED = "green", "red"
# How each kind of panel shows what it has.
OPTIONS = {
    "timeseries": {
        "legend": {"showLegend": True, "displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "background", "textMode": "value_and_name"},
    "state-timeline": {"showValue": "never", "mergeValues": True, "legend": {"showLegend": False}},
}
# The histogram that has exemplars.
WITH_EXEMPLARS = "rockbot_tool_invoke_duration_milliseconds_bucket"
# Where docker-compose.yml has Jaeger.
JAEGER = "http://127.0.0.1:16686"


def of(metric: str, where: str = "") -> str:
    return f'{metric}{{job=~"$job"{", " + where if where else ""}}}'


def summed(function: str, metric: str, by: str, where: str) -> str:
    return f"sum by ({by}) ({function}({of(metric, where)}[$__rate_interval]))"


def legend(by: str) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in by.split(", "))


def rate(metric: str, by: str, where: str = "") -> tuple[str, str]:
    return summed("rate", metric, by, where), legend(by)


def increase(metric: str, by: str, where: str = "", name: str = "") -> tuple[str, str]:
    return summed("increase", metric, by, where), f"{name} {legend(by)}".strip()


def gauge(metric: str, by: str = "instance", name: str = "", where: str = "", function: str = "sum") -> tuple[str, str]:
    return f"{function} by ({by}) ({of(metric, where)})", f"{name} {legend(by)}".strip()


def quantile(rank: float, histogram: str, by: str = "job", where: str = "", name: str = "") -> tuple[str, str]:
    buckets = summed("rate", f"{histogram}_bucket", f"le, {by}", where)
    return f"histogram_quantile({rank}, {buckets})", f"{name} {legend(by)}".strip()


def quantiles(histogram: str, by: str = "job", where: str = "") -> list[tuple[str, str]]:
    return [quantile(rank, histogram, by, where, f"p{rank * 100:g}") for rank in (0.5, 0.95, 0.99)]


def ratio(metric: str, by: str, part: str, where: str = "") -> tuple[str, str]:
    """The share of a part, which is 0 where there is none of it."""
    some, whole = (summed("rate", metric, by, text) for text in (f"{where}, {part}" if where else part, where))
    return f"({some} or 0 * {whole}) / {whole}", legend(by)


def traces_and_logs(operation: str = "") -> list[dict]:
    """Links to the traces and the log lines of a series, which has the label `job`: the service's name."""
    job = "${__field.labels.job}"
    query = f"service={job}" + (f"&operation={operation.replace(' ', '%20')}" if operation else "")
    # Grafana's times are in milliseconds, and Jaeger's in microseconds.
    jaeger = f"${{jaeger}}/search?{query}&lookback=custom&start=${{__from}}000&end=${{__to}}000"
    lines = {"refId": "A", "expr": f'{{service_name="{job}"}}'}
    pane = {"datasource": "${logs}", "queries": [lines], "range": {"from": "${__from}", "to": "${__to}"}}
    panes = quote(json.dumps({"logs": pane}, separators=(",", ":")), safe="${}:,.")
    return [
        {"title": "Traces in Jaeger", "url": jaeger, "targetBlank": True},
        {"title": "Logs in Loki", "url": f"/explore?schemaVersion=1&panes={panes}", "targetBlank": True},
    ]


def row(title: str) -> dict:
    return {"type": "row", "title": title, "collapsed": False, "panels": [], "width": WIDTH, "height": 1}


def panel(
    title: str,
    description: str,
    unit: str,
    *queries,
    kind: str = "timeseries",
    width: int = 12,
    limit: float | None = None,
    links: list[dict] | None = None,
    defaults: dict | None = None,
) -> dict:
    """A panel. It shows trouble from `limit` on. A list among the queries is several."""
    queries = [one for query in queries for one in (query if isinstance(query, list) else [query])]
    trouble = [] if limit is None else [{"value": limit, "color": RED}]
    fields = {
        "unit": unit,
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": [{"value": None, "color": GREEN}, *trouble]},
        "links": links or [],
    }
    if kind == "timeseries":
        fields["custom"] = {"fillOpacity": 10, "showPoints": "never"}
        if trouble:
            fields["custom"]["thresholdsStyle"] = {"mode": "line"}
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": fields | (defaults or {}), "overrides": []},
        "options": OPTIONS[kind],
        "targets": [
            {"datasource": SOURCE, "expr": expression, "legendFormat": text, "refId": chr(ord("A") + number)}
            | ({"exemplar": True} if WITH_EXEMPLARS in expression else {})
            for number, (expression, text) in enumerate(queries)
        ],
        "width": width,
        "height": HEIGHT,
    }


def yes_or_no(title: str, description: str, metric: str, good: int) -> dict:
    colors = {"0": GREEN if good == 0 else RED, "1": GREEN if good == 1 else RED}
    mapped = {value: {"text": ("no", "yes")[int(value)], "color": color} for value, color in colors.items()}
    steps = [{"value": None, "color": colors["0"]}, {"value": 1, "color": colors["1"]}]
    defaults = {"mappings": [{"type": "value", "options": mapped}], "thresholds": {"mode": "absolute", "steps": steps}}
    query = (of(metric), "{{instance}}")
    return panel(title, description, "short", query, kind="stat", width=4, defaults=defaults)


def source(name: str, label: str, kind: str) -> dict:
    return {"name": name, "label": label, "type": "datasource", "query": kind, "refresh": 1, "current": {}}


def variable(name: str, label: str, metric: str, key: str) -> dict:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({metric}, {key})", "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard(uid: str, title: str, description: str, variables: list[dict], panels: list[dict]) -> dict:
    placed, x, y = [], 0, 0
    for number, content in enumerate(panels, 1):
        size = {"w": content["width"], "h": content["height"]}
        if x + size["w"] > WIDTH:
            x, y = 0, y + HEIGHT
        kept = {key: value for key, value in content.items() if key not in ("width", "height")}
        placed.append({"id": number, **kept, "gridPos": {"x": x, "y": y, **size}})
        x, y = (0, y + 1) if content["type"] == "row" else (x + size["w"], y)
    others = {"type": "dashboards", "title": "Toolbus", "tags": ["toolbus"], "asDropdown": False}
    jaeger = {"type": "link", "title": "Jaeger", "icon": "external link", "url": "${jaeger}", "targetBlank": True}
    return {
        "uid": uid,
        "title": f"Toolbus: {title}",
        "description": description,
        "tags": ["toolbus"],
        "schemaVersion": 41,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [others | {"includeVars": True, "keepTime": True}, jaeger],
        "templating": {
            "list": [
                source("datasource", "Data source", "prometheus"),
                variable("job", "Daemon", "toolbus_calls_in_flight", "job"),
                *variables,
                source("logs", "Logs", "loki"),
                {
                    "name": "jaeger",
                    "label": "Jaeger",
                    "type": "textbox",
                    "query": JAEGER,
                    "current": {"text": JAEGER, "value": JAEGER},
                },
            ]
        },
        "panels": placed,
    }
