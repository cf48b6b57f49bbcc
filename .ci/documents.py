#!/usr/bin/env python3
"""Checks documents: links resolve, lines end, names of the code exist, figures are those of docs/performance.json, and
no file speaks of one machine or of unfinished work.
"""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import figures

LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^\[[^\]]+\]:\s*<?(\S+?)>?\s*$", re.MULTILINE)
COMMENT = re.compile(r"^<!--.*?-->", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
MAX_LINE = 120
NAME = re.compile(r"`([A-Z]\w*)::(\w+)`")
# A doc comment of Rust, up to its first words.
DOC = re.compile(r"^\s*//[/!] ?(\S.*)?")
OPENING = re.compile(r"(?:What|How|Its|It|Whether it)\b")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)

# Texts that belong in no file, and why.
FORBIDDEN = {
    re.compile(r"(?<![\w.$}/-])/(?:root|work|home|Users)/\w"): "a path of one machine",
    re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b|\btodo!|\bunimplemented!"): "unfinished work",
    re.compile(r"\bissue\s+#?\d+|\(#\d+\)", re.IGNORECASE): "a number that only a tracker explains",
}
UNREAD = {"Cargo.lock"}


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def anchors(document: Path) -> set[str]:
    """The anchors that a document's headings get, as code hosts make them."""
    found: dict[str, int] = {}
    result = set()
    for heading in HEADING.findall(FENCE.sub("", document.read_text("utf-8"))):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = found.get(slug, 0)
        found[slug] = count + 1
        result.add(f"{slug}-{count}" if count else slug)
    return result


def link_problems(document: Path) -> list[str]:
    text = without_code(document.read_text("utf-8"))
    problems = []
    for target in LINK.findall(text) + REFERENCE.findall(text):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        path, _, anchor = unquote(target).partition("#")
        file = (document.parent / path) if path else document
        if not file.exists():
            problems.append(f"{document}: link to {target}: no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            problems.append(f"{document}: link to {target}: no such heading")
    return problems


def long_lines(document: Path) -> list[str]:
    """Lines of prose over MAX_LINE characters; tables, code, comments and the targets of links cannot be broken."""
    prose = document.read_text("utf-8")
    for unbroken in (FENCE, COMMENT):
        prose = unbroken.sub(lambda block: re.sub(r".+", "", block[0]), prose)
    return [
        f"{document}:{number}: the line has more than {MAX_LINE} characters"
        for number, line in enumerate(prose.splitlines(), 1)
        if len(re.sub(r"\]\([^)]*\)", "]", line)) > MAX_LINE and not line.lstrip().startswith("|")
    ]


def forbidden_texts(file: Path) -> list[str]:
    try:
        lines = file.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        return []
    return [
        f"{file}:{number}: {why}: {match.group()}"
        for number, line in enumerate(lines, 1)
        for pattern, why in FORBIDDEN.items()
        if (match := pattern.search(line))
    ]


def missing_names(document: Path, sources: list[str]) -> list[str]:
    """Names `Type::name` of a document for which no source has both the type and a function, variant or field."""

    def is_there(type_name: str, name: str) -> bool:
        defined = re.compile(rf"\b(?:struct|enum|trait|impl|for)\b[^\n;{{(]*\b{type_name}\b")
        member = re.compile(rf"\b(?:fn|const) {name}\b|^\s+(?:pub(?:\([a-z]+\))? )?{name}\b *[,({{=:]", re.MULTILINE)
        return any(defined.search(source) and member.search(source) for source in sources)

    return [
        f"{document}: `{type_name}::{name}` is not in the code"
        for type_name, name in sorted(set(NAME.findall(document.read_text("utf-8"))))
        if not is_there(type_name, name)
    ]


def doc_openings(file: Path) -> list[str]:
    """Doc comments that do not read alone: they begin with a word that needs the name of what they are about."""
    lines = ["", *file.read_text("utf-8").splitlines()]
    return [
        f"{file}:{number}: a doc comment begins with a noun or a verb, not with `{opening.group()}`"
        for number, (before, line) in enumerate(zip(lines, lines[1:]), 1)
        if (doc := DOC.match(line)) and doc[1] and not DOC.match(before) and (opening := OPENING.match(doc[1]))
    ]


def example_problems() -> list[str]:
    """Documents show these examples as they are shipped and tested."""
    examples = {
        ("docs/wire.md", "python"): ["examples/python/call_tool.py"],
    }
    problems = []
    for (document, language), files in examples.items():
        text = Path(document).read_text("utf-8")
        shown = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        if shown != [Path(file).read_text("utf-8") for file in files]:
            problems.append(f"{document}: its {language} is not that of {', '.join(files)}")
    return problems


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "-z"], check=True, stdout=subprocess.PIPE, text=True).stdout
    files = [Path(name) for name in listed.split("\0") if name and name not in UNREAD and Path(name).is_file()]
    # What others wrote speaks as they do.
    ours = {Path("vendor/README.md"), Path("vendor/versions.toml")}
    files = [file for file in files if file.parts[0] != "vendor" or file in ours]
    # Pages of others, and what they become.
    kept = Path("crates/toolbus-web/tests/pages")
    files = [file for file in files if file.parent != kept or file.name == "README.md"]
    this = Path(__file__).resolve()
    problems = [text for file in files if file.suffix == ".md" for text in link_problems(file)]
    problems += [text for file in files if file.suffix == ".md" for text in long_lines(file)]
    problems += [text for file in files if file.resolve() != this for text in forbidden_texts(file)]
    sources = [file.read_text("utf-8") for file in files if file.suffix == ".rs"]
    problems += [text for file in files if file.suffix == ".rs" for text in doc_openings(file)]
    problems += missing_names(Path("docs/ARCHITECTURE.md"), sources)
    problems += example_problems()
    problems += figures.problems([file for file in files if file.suffix == ".md"])
    print("\n".join(problems) or f"{len(files)} files, nothing to object to")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
