#!/usr/bin/env python3
"""Checks that each copy under vendor/ is the published crate with its patch applied, and nothing else.

    vendored.py           compares, and prints each difference
    vendored.py --write   makes the copies from the published crates and the patches
    vendored.py --diff    makes the patches from the copies

vendor/versions.toml names the crates, and vendor/README.md says what the patches are for. A crate comes from cargo,
and is kept in the cache; nothing is built.
"""

import argparse
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

VENDOR = Path("vendor")
# Crates of our own that take the place of published ones.
STAND_INS = {"p12-keystore"}
# What cargo adds to a crate, and writes where one is built.
OF_CARGO = {".cargo-ok", ".cargo_vcs_info.json", "Cargo.lock", "Cargo.toml.orig", "target"}

Files = dict[str, bytes]


class Problem(Exception):
    """What keeps a crate from being compared."""


def fetch(name: str, version: str, sha256: str) -> bytes:
    """The packed crate, from this script's cache, from cargo's, or through cargo from the registry."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    packed = f"{name}-{version}.crate"
    kept = Path(os.environ.get("TOOLBUS_CACHE") or Path(base, "toolbus")) / "crates" / packed
    cargo = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")

    def candidates() -> list[Path]:
        return [kept, *sorted(cargo.glob(f"registry/cache/*/{packed}"))]

    def found() -> bytes | None:
        contents = (file.read_bytes() for file in candidates() if file.is_file())
        return next((data for data in contents if hashlib.sha256(data).hexdigest() == sha256), None)

    data = found()
    if data is None:
        # Brings the one crate and none that it depends on. The folder decides which version of cargo runs.
        command = ["cargo", "info", "--quiet", "--registry", "crates-io", f"{name}@{version}"]
        here = Path(__file__).resolve().parent
        asked = subprocess.run(command, cwd=here, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        data = found()
        if data is None:
            sums = {hashlib.sha256(file.read_bytes()).hexdigest() for file in candidates() if file.is_file()}
            reason = f"the published crate has {' '.join(sorted(sums))}" if sums else f"cargo: {asked.stderr.strip()}"
            raise Problem(f"no crate with the checksum {sha256} of {VENDOR}/versions.toml: {reason}")
    if not kept.is_file() or kept.read_bytes() != data:
        kept.parent.mkdir(parents=True, exist_ok=True)
        # Another run may be at the same file.
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
            file.write(data)
        os.replace(file.name, kept)
    return data


def unpack(crate: str, packed: bytes) -> Files:
    files = {}
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        for member in archive:
            path = member.name.removeprefix(f"{crate}/")
            if member.isdir() or path.split("/")[0] in OF_CARGO:
                continue
            if not member.isfile() or path == member.name or ".." in path.split("/"):
                raise Problem(f"the published crate holds {member.name}, which is no file of its own folder")
            files[path] = archive.extractfile(member).read()
    return files


def leave_out(files: Files, names: list[str]) -> tuple[Files, list[str]]:
    """What is left of a crate, and a line on what is not."""
    left, lines = dict(files), []
    for name in names:
        gone = [path for path in left if path == name or path.startswith(f"{name}/")]
        if not gone:
            raise Problem(f"{VENDOR}/versions.toml leaves out {name}, which the published crate does not hold")
        for path in gone:
            del left[path]
        lines.append(name if gone == [name] else f"{name}/ ({len(gone)})")
    return left, lines


def read(folder: Path) -> Files:
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.split("/")[0] in OF_CARGO:
            continue
        if path.is_symlink():
            files[name] = f"a link to {path.readlink()}\n".encode()
        elif path.is_file():
            files[name] = path.read_bytes()
    return files


def write(folder: Path, files: Files) -> None:
    """Makes a folder hold these files. What is as it should be is not touched: cargo goes by times."""
    there = read(folder)
    for name in there.keys() - files.keys():
        (folder / name).unlink()
    for name, data in files.items():
        file = folder / name
        if there.get(name) != data or file.is_symlink():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)
            file.write_bytes(data)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()


def git(arguments: list[str], folder: Path, **more) -> subprocess.CompletedProcess:
    """Runs git as a tool for patches: away from every repository, and whatever a user's configuration says."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
    environment["GIT_CEILING_DIRECTORIES"] = str(folder.parent)
    return subprocess.run(["git", *arguments], cwd=folder, env=environment, capture_output=True, **more)


def difference(old: Files, new: Files) -> bytes:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for side, files in ("a", old), ("b", new):
            (folder / side).mkdir()
            write(folder / side, files)
        options = ["--no-index", "--no-prefix", "--no-renames", "--no-color", "--no-ext-diff", "--binary"]
        done = git(["diff", *options, "a", "b"], folder)
    if done.returncode not in (0, 1):
        raise Problem(done.stderr.decode(errors="replace"))
    return done.stdout


def patched(files: Files, patch: bytes) -> tuple[Files, str]:
    """The files with a patch applied, and what git says of the parts that do not fit."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        write(folder, files)
        done = git(["apply", "--reject", "--whitespace=nowarn", "-"], folder, input=patch)
        result = {path: data for path, data in read(folder).items() if not path.endswith(".rej")}
    return result, done.stderr.decode(errors="replace") if done.returncode else ""


def strangers(crates: dict) -> list[str]:
    """What lies under vendor/ and belongs to none of its crates."""
    known = {"README.md", "versions.toml", *STAND_INS, *crates, *(f"{name}.patch" for name in crates)}
    found = [path for path in sorted(VENDOR.iterdir()) if path.name not in known]
    return [f"{path}: {VENDOR}/versions.toml names no such crate" for path in found]


def work_on(name: str, rules: dict, mode: str) -> None:
    """Compares a copy, or makes it, or its patch."""
    crate, copy, patch = f"{name}-{rules['version']}", VENDOR / name, VENDOR / f"{name}.patch"
    packed = fetch(name, rules["version"], rules["sha256"])
    base, left_out = leave_out(unpack(crate, packed), rules["left-out"])
    if mode == "diff":
        patch.write_bytes(difference(base, read(copy)))
        print(f"{patch}: made from {copy}")
        return
    if not patch.is_file():
        raise Problem(f"there is no {patch}")
    expected, rejected = patched(base, patch.read_bytes())
    if mode == "write":
        write(copy, expected)
        print(f"{copy}: made from {crate} and {patch}")
    if rejected:
        raise Problem(f"{patch} does not fit {crate}:\n{rejected}")
    have = read(copy)
    if differences := difference(expected, have).decode(errors="replace"):
        names = [path for path in sorted(expected.keys() | have.keys()) if expected.get(path) != have.get(path)]
        raise Problem(f"{copy} is not {crate} and {patch}, in {', '.join(names)}:\n{differences}")
    changed = [path for path in sorted(have) if base.get(path) != have[path]]
    print(f"{copy}: {len(have)} files of {crate}, changed in {', '.join(changed)}; left out: {', '.join(left_out)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_mutually_exclusive_group()
    for mode, does in ("write", "make the copies from the patches"), ("diff", "make the patches from the copies"):
        modes.add_argument(f"--{mode}", dest="mode", action="store_const", const=mode, default="compare", help=does)
    mode = parser.parse_args().mode
    crates = tomllib.loads((VENDOR / "versions.toml").read_text("utf-8"))
    problems = strangers(crates)
    for name, rules in crates.items():
        try:
            work_on(name, rules, mode)
        except Problem as problem:
            problems.append(f"{name}: {problem}")
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
