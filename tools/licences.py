#!/usr/bin/env python3
"""Prints the licences of the crates that the program is built from: those that each crate has, once each text."""

import json
import subprocess
import sys
from pathlib import Path

NAMES = ("license", "licence", "copying", "notice", "copyright", "unlicense")


def crates() -> list[dict]:
    """Packages that the program links, without those that only build or test it."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-gnu"]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [package["id"] for package in packages.values() if package["name"] == "toolbus"]
    seen = set(waiting)
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            if dependency["pkg"] not in seen and any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                seen.add(dependency["pkg"])
                waiting.append(dependency["pkg"])
    return sorted((packages[name] for name in seen), key=lambda package: (package["name"], package["version"]))


def main() -> None:
    users: dict[str, list[str]] = {}
    for package in crates():
        name = f"{package['name']} {package['version']} ({package['license'] or 'see its file'})"
        folder = Path(package["manifest_path"]).parent
        files = [file for file in sorted(folder.iterdir()) if file.name.lower().startswith(NAMES) and file.is_file()]
        texts = [file.read_text("utf-8", "replace").strip() for file in files]
        for text in texts or ["(The crate has no file with its licence.)"]:
            users.setdefault(text, []).append(name)
    for text, names in users.items():
        sys.stdout.write("\n".join(["=" * 78, *names, "=" * 78, "", text, "", ""]))


if __name__ == "__main__":
    main()
