# The first process of a pod, or one that is started in a sandbox: runs one script, and writes what comes of it to its
# standard output, a line for each part, which `log.rs` reads. It keeps the limits that a pod does not have. A script that interferes with it changes its
# own result, and nothing else.
import base64
import json
import os
import resource
import selectors
import signal
import stat
import subprocess
import sys
import time

PART = 8192
LAST_WORDS = 1.0
MOST_FILES = 64
LONGEST_NAME = 200
MOST_NAMED = 21
MOST_VARIABLE = 128 * 1024
LONGEST_REPORT = 4096
# Of reports, in bytes: `pod.rs` has room for them in the log.
MOST_REPORTS = 3 * 1024 * 1024
# Processes that are waited for before the pipes are read again.
MOST_REAPED = 4096
# Of what a script has left in its pipes, in bytes: who reads what is written here may be slow.
MOST_REST = 1024 * 1024
# Seconds between two reports: the daemon passes no more on.
REPORT_PAUSE = 0.05


def say(kind, *parts):
    line = kind.encode() + b"".join(b" " + base64.b64encode(part) for part in parts) + b"\n"
    while line:
        line = line[os.write(1, line) :]


def job():
    count = os.environ.pop("TOOLBUS_JOB_PARTS", None)
    if count is None:
        # Its end is known by its length: not every connection can tell the end of the input.
        return json.loads(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))
    return json.loads("".join(os.environ.pop(f"TOOLBUS_JOB_{at}") for at in range(int(count))))


def prepare(work, job):
    for part in ("home", "job", "out", "tmp"):
        os.mkdir(f"{work}/{part}")
    files = {f"home/{name}": base64.b64decode(data) for name, data in job["files"].items()}
    files["job/script.py"] = job["source"].encode("utf-8", "surrogatepass")
    files["job/input"] = job["input"].encode("utf-8", "surrogatepass")
    for name, data in files.items():
        with open(f"{work}/{name}", "wb") as file:
            file.write(data)


def environment(work, job, progress):
    variables = {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "Agg",
        "USER": "script",
        "HOME": f"{work}/home",
        "TMPDIR": f"{work}/tmp",
        "TOOLBUS_INPUT_FILE": f"{work}/job/input",
        "TOOLBUS_OUTPUT": f"{work}/out",
        "TOOLBUS_PROGRESS_FD": str(progress),
    }
    variables.update(job["variables"])
    given = job["input"]
    if len("ROCKBOT_INPUT=") + len(given.encode("utf-8", "surrogatepass")) < MOST_VARIABLE and "\0" not in given:
        variables["ROCKBOT_INPUT"] = given
    return variables


def limit(limits):
    def apply():
        sizes = {
            resource.RLIMIT_NOFILE: limits["open_files"],
            resource.RLIMIT_FSIZE: limits["file_size"],
            resource.RLIMIT_CORE: 0,
        }
        # The kernel counts the processes of a user; each pod has a user of its own, and sandboxes of a pool have not.
        if limits["processes"] is not None:
            sizes[resource.RLIMIT_NPROC] = limits["processes"] + 2
        for kind, size in sizes.items():
            _, hard = resource.getrlimit(kind)
            size = size if hard == resource.RLIM_INFINITY else min(size, hard)
            resource.setrlimit(kind, (size, size))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    return apply


class Stream:
    """What a script writes to one of its pipes, as far as it may."""

    def __init__(self, kind, most):
        self.kind, self.left = kind, most

    def take(self, data):
        """Whether there is more than may be."""
        say(self.kind, data[: self.left])
        is_over = len(data) > self.left
        self.left -= min(self.left, len(data))
        return is_over


class Reports:
    """Reports of progress, each on a line. Of those that come quickly the last is sent."""

    def __init__(self):
        self.rest, self.latest = b"", None
        self.left, self.due = MOST_REPORTS, 0

    def take(self, data):
        *lines, self.rest = (self.rest + data).split(b"\n")
        self.rest = self.rest[:LONGEST_REPORT]
        for line in lines:
            if len(line) <= LONGEST_REPORT and line.lstrip().startswith(b"{"):
                self.latest = line
        return False

    def wait(self):
        """Seconds until one is to be sent."""
        return float("inf") if self.latest is None else self.due - time.monotonic()

    def send(self):
        line, self.latest = self.latest, None
        if line is not None and len(line) < self.left:
            self.left -= len(line) + 8
            self.due = time.monotonic() + REPORT_PAUSE
            say("p", line)


def execute(work, job):
    """Runs the script: how it ended."""
    progress, for_script = os.pipe()
    awake, wake = os.pipe()
    os.set_blocking(awake, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    limits = job["limits"]
    begun = time.monotonic()
    say("b")
    child = subprocess.Popen(
        [sys.executable, "-c", job["program"]],
        cwd=f"{work}/home",
        env=environment(work, job, for_script),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(for_script,),
        preexec_fn=limit(limits),
        start_new_session=True,
    )
    os.close(for_script)
    pipes = selectors.DefaultSelector()
    pipes.register(awake, selectors.EVENT_READ)
    reports = Reports()
    readers = {
        child.stdout.fileno(): Stream("o", limits["output"]),
        child.stderr.fileno(): Stream("e", limits["output"]),
        progress: reports,
    }
    for pipe in readers:
        pipes.register(pipe, selectors.EVENT_READ)
    stop, until, has_ended, rest = None, begun + job["seconds"], False, MOST_REST
    # A script may have closed them, and go on.
    while readers or not has_ended:
        ready = pipes.select(max(0, min(until - time.monotonic(), reports.wait())))
        # Also while there is something to read: a script may write without a pause.
        is_late = time.monotonic() >= until
        if is_late and has_ended and (not ready or rest <= 0):
            break
        if is_late and not has_ended and child.poll() is None:
            stop = "time"
        for key, _ in ready:
            reader = readers.get(key.fd)
            data = os.read(key.fd, PART)
            rest -= len(data) if is_late else 0
            if not reader:
                reap_orphans(child)
                continue
            if not data:
                pipes.unregister(key.fd)
                del readers[key.fd]
            elif reader.take(data) and not stop:
                stop = "output"
        if reports.wait() <= 0:
            reports.send()
        if not has_ended and (stop or child.poll() is not None):
            # The rest of the pipes is read, which processes elsewhere may hold open.
            has_ended, until = True, time.monotonic() + LAST_WORDS
            end_all(child)
    end_all(child)
    reports.send()
    elapsed = time.monotonic() - begun
    code = child.wait()
    if not stop and code == -signal.SIGKILL and was_out_of_memory():
        stop = "memory"
    return {"stop": stop, "code": code, "elapsed_ms": int(elapsed * 1000)}


def reap_orphans(child):
    """Waits for what processes that have ended have left, which counts for the limit until then."""
    if os.getpid() != 1:
        return
    try:
        for _ in range(MOST_REAPED):
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if not ended or ended.si_pid == child.pid:
                break
            os.waitpid(ended.si_pid, 0)
    except ChildProcessError:
        pass


def end_all(child):
    """Ends what the script has started: in a pod, all but this process."""
    try:
        if os.getpid() == 1:
            os.kill(-1, signal.SIGKILL)
        else:
            os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def was_out_of_memory():
    try:
        with open("/sys/fs/cgroup/memory.events") as events:
            return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in events)
    except OSError:
        return False


def send_files(folder, most):
    """Sends the regular files of a folder: how many did not come back."""
    left_out, sent = 0, 0
    for name in sorted(os.listdir(os.fsencode(folder))):
        try:
            if sent == MOST_FILES or len(name) > LONGEST_NAME:
                raise ValueError
            name.decode()
            file = os.open(os.path.join(os.fsencode(folder), name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(file, "rb") as opened:
                about = os.fstat(file)
                if not stat.S_ISREG(about.st_mode) or about.st_size > most:
                    raise ValueError
                data = opened.read(most + 1)
            if len(data) > most:
                raise ValueError
        except (OSError, ValueError):
            left_out += 1
            continue
        most -= len(data)
        sent += 1
        say("f", name)
        for at in range(0, len(data), PART):
            say("d", data[at : at + PART])
    return left_out


def not_returned(home, given):
    """Names files that a model may take for returned."""
    names, looked_at = [], 0
    for folder, folders, files in os.walk(home):
        depth = folder[len(home) :].count("/")
        folders[:] = [] if depth == 2 else [name for name in folders if name[0] != "." and name != "__pycache__"]
        for name in files:
            looked_at += 1
            path = os.path.relpath(os.path.join(folder, name), home)
            if looked_at > 10_000:
                return sorted(names)[:MOST_NAMED]
            try:
                is_file = stat.S_ISREG(os.lstat(os.path.join(folder, name)).st_mode)
            except OSError:
                continue
            if is_file and name[0] != "." and path not in given and path.isprintable():
                names.append(path)
    return sorted(names)[:MOST_NAMED]


def main(work):
    given = job()
    prepare(work, given)
    result = execute(work, given)
    try:
        result["left_out"] = send_files(f"{work}/out", given["limits"]["artifacts"])
    except OSError:
        # The script has removed the folder.
        result["left_out"] = 0
    result["not_returned"] = not_returned(f"{work}/home", given["files"])
    say("x", json.dumps(result).encode())


main(sys.argv[1])
