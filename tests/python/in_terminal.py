"""Runs a program in a terminal of its own: in_terminal.py WORD KEYS WORD KEYS … -- PROGRAM ARGUMENT …

Each time the program writes WORD, KEYS are typed; KEYS that name a signal send it instead. Prints as JSON what was
written, the exit code (negative for a signal), and whether the terminal is in the mode that it had at first.
"""

import json
import os
import pty
import select
import signal
import sys
import termios
import time

PATIENCE = 60


def main() -> None:
    at = sys.argv.index("--")
    steps, program = sys.argv[1:at], sys.argv[at + 1 :]
    terminal, inner = pty.openpty()
    termios.tcsetwinsize(inner, (24, 100))
    before = termios.tcgetattr(inner)
    child = os.fork()
    if child == 0:
        os.login_tty(inner)
        os.execv(program[0], program)
    written, seen, end = "", 0, time.monotonic() + PATIENCE
    while (status := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
        if select.select([terminal], [], [], 0.1)[0]:
            written += os.read(terminal, 65536).decode(errors="replace")
        if steps and steps[0] in written[seen:]:
            keys, seen = steps[1], len(written)
            del steps[:2]
            if keys in signal.Signals.__members__:
                os.kill(child, signal.Signals[keys])
            else:
                os.write(terminal, keys.encode())
    while select.select([terminal], [], [], 0)[0]:
        written += os.read(terminal, 65536).decode(errors="replace")
    restored = termios.tcgetattr(inner) == before
    print(json.dumps({"out": written, "code": os.waitstatus_to_exitcode(status[1]), "restored": restored}))


main()
