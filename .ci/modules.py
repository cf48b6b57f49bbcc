#!/usr/bin/env python3
"""Compares the modules of the crates with the house rules: no circles, no folders with one or two files.

A module may import from the modules above it, which it can see anyway: what counts is a circle among the others. Tests
do not count. Ends with 1 and names what is wrong, or an exception that is no longer needed.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Circles that stay, by crate: each set of modules imports in a circle.
CIRCLES = {
    # A call of the bus is made by what handles inner calls, and both are what the dispatcher runs.
    "toolbus-core": [{"dispatcher::call", "dispatcher::inner"}],
    # Forked processes continue as each other: watchdog, init process, template, program.
    "toolbus-sandbox": [{"helper::init", "helper::start", "helper::template", "helper::watchdog"}],
    "toolbus-scripts": [
        {"commands::check", "commands::executor"},
        {"config", "packages", "runner", "runner::pool", "runner::sandbox", "runner::session"}
        | {"tool", "tool::hints", "tool::session", "tool::text"},
    ],
    # The ledger's table is a migration of the file that the store opens, and the ledger's threads open that file.
    "toolbus-store": [{"sqlite", "sqlite_ledger", "sqlite_threads"}],
}

# Folders with one or two files besides tests, each with what it is beside.
FOLDERS = {
    "toolbus/src/audit": "the writer's thread and the file, which are no concern of the log",
    "toolbus-mcp-server/src/stdio": "the connection; its tests are as many files",
}


def production(text):
    """The code without tests and comments."""
    text = re.split(r"^#\[cfg\(test\)\]\s*\n(?:#\[[^\n]*\]\n)*(?:pub(?:\(crate\))? )?mod \w+ \{", text, flags=re.M)[0]
    text = re.sub(r"^#\[cfg\(test\)\]\s*\n[^\n]*;\n", "", text, flags=re.M)
    return re.sub(r"//[^\n]*", "", text)


def expand(tree):
    """The paths of a `use`, each with the name that it brings."""
    tree = tree.strip()
    plain = re.fullmatch(r"((?:\w+|\*)(?:::(?:\w+|\*))*)(?:\s+as\s+(\w+))?", tree)
    if plain:
        path = plain[1].split("::")
        path = path[:-1] if path[-1] == "self" else path
        yield path, plain[2] or (path[-1] if path else "")
        return
    group = re.fullmatch(r"(.*?)(?:::)?\{(.*)\}", tree, re.S)
    if not group:
        return
    prefix = [part for part in group[1].split("::") if part]
    depth, part, parts = 0, "", []
    for character in group[2] + ",":
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += character
    for part in filter(str.strip, parts):
        for path, name in expand(part):
            yield prefix + path, name or prefix[-1]


class Crate:
    """The modules of a crate, and what each imports of others."""

    def __init__(self, source):
        self.modules = {}
        for file in source.rglob("*.rs"):
            parts = file.relative_to(source).with_suffix("").parts
            if "tests" not in parts and parts != ("main",):
                self.modules[() if parts == ("lib",) else parts] = production(file.read_text())
        self.exports, self.paths = defaultdict(dict), defaultdict(list)
        for module, text in self.modules.items():
            for visible, tree in re.findall(r"^\s*(pub(?:\([^)]*\))? )?use ([^;]+);", text, re.M):
                for path, name in expand(re.sub(r"\s+", " ", tree)):
                    if visible:
                        self.exports[module][name] = path
                    else:
                        self.paths[module].append(path)
            body = re.sub(r"^\s*(?:pub(?:\([^)]*\))? )?use [^;]+;", "", text, flags=re.M)
            found = re.findall(r"(?<![\w:])((?:[a-z]\w*)(?:::\w+)+)", body)
            self.paths[module] += [path.split("::") for path in found]

    def resolve(self, module, path, seen=frozenset()):
        """The module that defines what a path means, if it is one of this crate."""
        if (module, tuple(path)) in seen or not path:
            return None
        seen = seen | {(module, tuple(path))}
        first, rest = path[0], list(path[1:])
        if first == "crate":
            module = ()
        elif first == "super":
            module = module[:-1]
            while rest and rest[0] == "super":
                module, rest = module[:-1], rest[1:]
        elif first != "self":
            if module + (first,) in self.modules:
                module = module + (first,)
            else:
                known = [p for p in self.paths[module] if p[-1] == first and p != path]
                local = [p for p in known if p[0] in ("crate", "super", "self")]
                return self.resolve(module, list(local[0]) + rest, seen) if local else None
        while rest:
            if module + (rest[0],) in self.modules:
                module, rest = module + (rest[0],), rest[1:]
            elif rest[0] in self.exports[module]:
                return self.resolve(module, list(self.exports[module][rest[0]]) + rest[1:], seen)
            else:
                return None if rest[0] == "*" else module
        return None

    def imports(self):
        """The modules that each module imports from, without those above it."""
        edges = defaultdict(set)
        for module, paths in self.paths.items():
            found = {self.resolve(module, path) for path in paths}
            edges[module] = {other for other in found if other is not None and module[: len(other)] != other}
        return edges


def circles(edges):
    """Sets of modules each of which reaches all others of its set."""

    def reached(start):
        todo, seen = list(edges.get(start, ())), set()
        while todo:
            module = todo.pop()
            if module not in seen:
                seen.add(module)
                todo += edges.get(module, ())
        return seen

    reach = {module: reached(module) for module in edges}
    found = {frozenset(o for o in reach[m] if m in reach.get(o, ())) for m in edges if m in reach[m]}
    return [{"::".join(module) for module in circle} for circle in found]


def main():
    """Says what is wrong."""
    problems, folders = [], defaultdict(int)
    for source in sorted([*ROOT.glob("crates/*/src"), *ROOT.glob("tools/*/src")]):
        name, crate = source.parent.name, Crate(source)
        found, expected = circles(crate.imports()), CIRCLES.get(name, [])
        problems += [f"{name}: {', '.join(sorted(c))} import in a circle" for c in found if c not in expected]
        problems += [f"{name}: no circle of {', '.join(sorted(c))} any more" for c in expected if c not in found]
        for module in crate.modules:
            folders["/".join((name, "src") + module[:-1])] += 1
    few = {folder for folder, files in folders.items() if files < 3}
    problems += [f"{folder}: a folder with fewer than three files" for folder in sorted(few - FOLDERS.keys())]
    problems += [f"{folder}: no exception any more" for folder in sorted(FOLDERS.keys() - few)]
    print("\n".join(problems) or f"{sum(folders.values())} modules, nothing to object to")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
