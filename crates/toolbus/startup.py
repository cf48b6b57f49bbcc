#!/usr/bin/env python3
"""Writes startup.ld: the functions that a start and a first call run, which the shipped program has in one place.

    startup.py PROGRAM AMQP_URL

PROGRAM is built with `--profile dist` and `CARGO_PROFILE_DIST_STRIP=none`. valgrind runs it on the broker, where it
answers one call.
"""

import bisect
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import time

HEAD = """\
/* The order of functions in the program that is shipped: what a start and a first call run comes first. The kernel maps
   a program in pieces of 64 KB, and a start would otherwise touch two thirds of them. Written by startup.py. */
SECTIONS {
  .text.startup_order : {
"""
TAIL = """\
  }
} INSERT BEFORE .text;
"""


def executed(program: str, url: str) -> set[str]:
    """The symbols of all functions that a daemon ran: started on the broker, called once, and stopped."""
    with tempfile.TemporaryDirectory() as folder:
        profile = pathlib.Path(folder, "profile")
        valgrind = ["valgrind", "--quiet", "--tool=callgrind", "--demangle=no", f"--callgrind-out-file={profile}"]
        daemon = subprocess.Popen([*valgrind, program, "serve", "--set", f"bus.url={url}"], cwd=folder)
        try:
            call = [program, "call", "current_time", "--timeout", "30s", "--set", f"bus.url={url}"]
            deadline = time.monotonic() + 120
            while subprocess.run(call, cwd=folder, capture_output=True).returncode:
                if daemon.poll() is not None or time.monotonic() > deadline:
                    sys.exit("the daemon answers no call")
        finally:
            daemon.terminate()
            daemon.wait()
        return set(re.findall(r"^c?fn=\(\d+\) ([^'\n]+)", profile.read_text(), re.MULTILINE))


def stem(symbol: str) -> str:
    """The symbol without the hash or number at its end, which change from one build to another."""
    return re.sub(r"17h[0-9a-f]{16}E.*|\.(llvm\.)?\d+$", "", symbol)


def common(one: str, other: str) -> int:
    """The length of what both begin with."""
    return len(os.path.commonprefix([one, other]))


def main() -> None:
    program, url = sys.argv[1:]
    symbols = executed(program, url)
    needed, others = collections.Counter(), collections.Counter()
    listing = subprocess.run(["nm", "--print-size", program], check=True, capture_output=True, text=True).stdout
    for _, size, kind, symbol in (line.split() for line in listing.splitlines() if line.count(" ") == 3):
        if kind in "tTwW":
            (needed if symbol in symbols else others)[stem(symbol)] += int(size, 16)
    unneeded = sorted(name for name in others if name not in needed)

    # Of each name the least that no function has which is not needed, with the bytes that are needed and that are not.
    patterns = collections.defaultdict(lambda: [1, 0])
    for name in needed:
        place = bisect.bisect(unneeded, name)
        length = 1 + max(common(name, other) for other in unneeded[max(place - 1, 0) : place + 1])
        size = patterns[f".text.{name[:length]}*"]
        size[0] += needed[name]
        size[1] += others[name]

    # Instances of one generic function have one name. Names with many that are not needed come last.
    text = ""
    for low, high in ((0, 1), (1, 8), (8, sys.maxsize)):
        names = (name for name, (needs, leaves) in sorted(patterns.items()) if low <= leaves / needs < high)
        lines = textwrap.wrap(" ".join(names), 113, break_long_words=False, break_on_hyphens=False)
        text += "    *(" + "\n      ".join(lines) + ")\n"
    pathlib.Path(__file__).with_name("startup.ld").write_text(HEAD + text + TAIL)


if __name__ == "__main__":
    main()
