"""Compares figures in documents with docs/performance.json, which `toolbus bench --save` writes.

A comment before a table says where its figures come from:

    <!-- figures of ENTRY: its rows -->       the table that the measurement printed, cell by cell
    <!-- figures of ENTRY                     one line for each row of the table: a path for each cell after the first,
    ratios > 64 > throughput | - | @OTHER > ratios > 64 > cpu; ratios > 1 > p50
    -->

`-` is a cell without a figure of the file, `;` separates several figures of one cell, `@OTHER` begins at another entry.
A step of a path is a key of an object, or what an element of a list has as `callers`, `side`, `name` or `what`. A figure
agrees if the value, rounded to the decimals that the document shows, is the same.

Every entry has to be named in a document, and every gate that was missed has to be among the figures: negative results
stand beside positive ones.
"""

import json
import re
from decimal import Decimal
from pathlib import Path

FILE = Path("docs/performance.json")
FIELDS = {"command", "machine", "date", "commit", "figures"}
MARKER = re.compile(r"^<!-- figures of ([\w-]+)(: its rows)?(.*?)-->\n((?:\|[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])-?\d+(?: \d{3})*(?:\.\d+)?")
NAMES = ("callers", "side", "name", "what")
COLUMNS = {
    "calls/s": "callsPerSecond",
    "p50 ms": "p50Ms",
    "p95 ms": "p95Ms",
    "p99 ms": "p99Ms",
    "CPU s/1000": "cpuSecondsPer1000",
    "load CPU s/1000": "loadCpuSecondsPer1000",
    "peak MiB": "peakMib",
}


def look_up(value, steps: list[str]):
    """The value at the end of a path; None if there is none, or more than one."""
    for step in steps:
        if isinstance(value, list):
            found = [item for item in value if any(str(item.get(name)) == step for name in NAMES)]
            value = found[0] if len(found) == 1 else found or None
        elif isinstance(value, dict):
            # The element of a list that had one alone is not asked twice.
            value = value.get(step, value if any(str(value.get(name)) == step for name in NAMES) else None)
        else:
            return None
    return value


def agrees(shown: str, value) -> bool:
    """Whether the number in a document is the value, rounded. A value in words, such as "0.43 ms", begins with its number."""
    if isinstance(value, str):
        number = NUMBER.search(value)
        value = number[0] if number else None
    if value is None or isinstance(value, (bool, list, dict)):
        return False
    shown = Decimal(shown.replace(" ", ""))
    # Half a unit of the last decimal, and what a float may lack of it.
    unit = Decimal(1).scaleb(shown.as_tuple().exponent)
    return abs(Decimal(str(value).replace(" ", "")) - shown) <= unit / 2


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


class Figures:
    def __init__(self, entries: dict):
        self.entries = entries
        self.cited: set[tuple[str, ...]] = set()

    def of_path(self, path: str, entry: str):
        steps = [step.strip() for step in path.split(" > ")]
        if steps[0].startswith("@"):
            entry, steps = steps[0][1:], steps[1:]
        self.cited.add((entry, *steps))
        return look_up(self.entries.get(entry, {}).get("figures"), steps)

    def own_rows(self, entry: str, table: list[str]) -> list[str]:
        """What is wrong with a table as the measurement printed it."""
        header, problems = cells(table[0]), []
        rows = self.entries.get(entry, {}).get("figures", {}).get("rows", [])
        self.cited.add((entry, "rows"))
        if len(rows) != len(table) - 2:
            problems.append(f"{len(table) - 2} rows, but the entry has {len(rows)}")
        for row in map(cells, table[2:]):
            for column, shown in zip(header[2:], row[2:]):
                value = look_up(rows, [row[0], row[1], COLUMNS.get(column, column)])
                if not agrees(shown, value):
                    problems.append(f"{row[1]} at {row[0]}, {column}: {shown}, but the file says {value}")
        return problems

    def paths(self, entry: str, lines: list[str], table: list[str]) -> list[str]:
        """What is wrong with a table whose cells have paths."""
        rows, problems = [cells(row) for row in table[2:]], []
        if len(lines) != len(rows):
            return [f"{len(lines)} lines of paths for {len(rows)} rows"]
        for line, row in zip(lines, rows):
            parts = [part.strip() for part in line.split(" | ")]
            if len(parts) > len(row) - 1:
                problems.append(f"{row[0]}: {len(parts)} paths for {len(row) - 1} cells")
            for part, cell in zip(parts, row[1:]):
                if part == "-":
                    continue
                shown = NUMBER.findall(cell)
                values = [self.of_path(path.strip(), entry) for path in part.split(";")]
                if len(shown) != len(values) or not all(map(agrees, shown, values)):
                    problems.append(f"{row[0]}: {cell}, but the file says {', '.join(map(str, values))}")
        return problems

    def left_out(self) -> list[str]:
        """Entries that no document names, and gates that were missed and are not shown."""
        named = {path[0] for path in self.cited}
        problems = [f"{entry} is in no document" for entry in self.entries if entry not in named]
        for entry, content in self.entries.items():
            for gate in content.get("figures", {}).get("gates", []):
                path = (entry, "gates", gate.get("what"), "measured")
                if gate.get("isMet") is False and path not in self.cited:
                    problems.append(f"{entry}: the missed gate '{gate.get('what')}' is in no document")
        return problems


def problems(documents: list[Path], file: Path = FILE) -> list[str]:
    """What is wrong with the figures of these documents."""
    figures = Figures(json.loads(file.read_text("utf-8")))
    found = [
        f"{file}: {entry} has no {', '.join(sorted(FIELDS - content.keys()))}"
        for entry, content in figures.entries.items()
        if FIELDS - content.keys()
    ]
    for document in documents:
        text = document.read_text("utf-8")
        markers = list(MARKER.finditer(text))
        if len(markers) != text.count("<!-- figures"):
            found.append(f"{document}: a comment on figures cannot be read, or no table follows it")
        for marker in markers:
            entry, is_own, lines, table = marker.groups()
            where = f"{document}:{text.count(chr(10), 0, marker.start()) + 1}"
            if entry not in figures.entries:
                found.append(f"{where}: {file} has no entry {entry}")
                continue
            table, lines = table.splitlines(), [line for line in lines.splitlines() if line.strip()]
            wrong = figures.own_rows(entry, table) if is_own else figures.paths(entry, lines, table)
            found += [f"{where}: {text}" for text in wrong]
    return found + [f"{file}: {text}" for text in figures.left_out()]
