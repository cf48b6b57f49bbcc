#!/usr/bin/env python3
"""Checks that every dependency may be used under a licence that deny.toml allows, and is none that it bans; also those of
the TypeScript client.

For machines without cargo-deny, which checks the same list and more: `cargo deny check`.
"""

import json
import re
import subprocess
import sys
import tomllib


def is_allowed(expression: str, allowed: set[str]) -> bool:
    """Evaluates an SPDX expression: OR, AND, WITH and parentheses; `/` is the old way to write OR."""
    tokens = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))

    def either() -> bool:
        result = both()
        while tokens and tokens[0].upper() == "OR":
            tokens.pop(0)
            result = both() or result
        return result

    def both() -> bool:
        result = one()
        while tokens and tokens[0].upper() == "AND":
            tokens.pop(0)
            result = one() and result
        return result

    def one() -> bool:
        token = tokens.pop(0)
        if token == "(":
            result = either()
            if tokens.pop(0) != ")":
                raise ValueError("unbalanced parentheses")
            return result
        if tokens and tokens[0].upper() == "WITH":
            tokens.pop(0)
            token = f"{token} WITH {tokens.pop(0)}"
        return token in allowed

    result = either()
    if tokens:
        raise ValueError(f"unexpected {tokens[0]!r}")
    return result


def main() -> int:
    with open("deny.toml", "rb") as file:
        rules = tomllib.load(file)
    allowed = set(rules["licenses"]["allow"])
    banned = {rule["crate"]: rule["reason"] for rule in rules["bans"]["deny"]}
    metadata = json.loads(
        subprocess.run(
            ["cargo", "metadata", "--locked", "--format-version", "1"], check=True, stdout=subprocess.PIPE
        ).stdout
    )
    with open("clients/typescript/package-lock.json", encoding="utf-8") as file:
        # The entry without a name is the client's own.
        of_npm = [{"name": name, **package} for name, package in json.load(file)["packages"].items() if name]
    packages, problems = metadata["packages"] + of_npm, []
    for package in packages:
        name, licence = f"{package['name']} {package['version']}", package.get("license")
        if package["name"] in banned:
            problems.append(f"{name}: banned by deny.toml: {banned[package['name']]}")
        try:
            if not licence:
                problems.append(f"{name}: names no licence")
            elif not is_allowed(licence, allowed):
                problems.append(f"{name}: {licence} is not allowed by deny.toml")
        except (IndexError, ValueError) as error:
            problems.append(f"{name}: {licence!r} cannot be read: {error}")
    print("\n".join(problems) or f"{len(packages)} packages, all under allowed licences, none banned")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
