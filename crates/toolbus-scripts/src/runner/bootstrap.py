# Runs before run.py as `python -s -S -c …`: prepares what a script expects, and waits for one, or forks for each.
# Arguments: modules to import before that, the folder of packages, if any, and whether to fork for each script.
import builtins, gc, posix, sys


def prepare():
    builtins.exit = builtins.quit = sys.exit
    imports, packages, forks = sys.argv[1:4]
    job = posix.environ.pop(b"TOOLBUS_JOB").decode()
    posix.unsetenv(b"TOOLBUS_JOB")
    # Its own folder first, then packages; the job's own folder last, where tracebacks find the lines of the script.
    sys.path[0] = posix.getcwd()
    sys.path.extend([packages, job] if packages else [job])
    if forks:
        sys.meta_path.insert(0, QuietFigures)
    for name in imports.split():
        try:
            __import__(name)
        except ImportError:
            pass
    for name in forks.split():
        # They are for what is imported here, and not for what a script starts.
        posix.environ.pop(name.encode(), None)
        posix.unsetenv(name.encode())
        if "os" in sys.modules:
            sys.modules["os"].environ._data.pop(name.encode(), None)
    if forks:
        # It does not return.
        fork_for_scripts(posix.getcwd(), lambda own: end(run, *await_script(job, packages, own)))
    # What is there by now stays until the end: no collection needs to look at it.
    gc.freeze()
    return await_script(job, packages, b".")


def await_script(job, packages, ready):
    posix.write(4, ready)
    posix.close(4)
    gone = not posix.read(3, 1)
    posix.close(3)
    if gone:
        posix._exit(0)
    with open(job + "/input", "rb") as file:
        text = file.read()
    variables = {b"TOOLBUS_INPUT_FILE": (job + "/input").encode()}
    if b"\0" not in text and len(text) < 128 * 1024 - len("ROCKBOT_INPUT="):
        # No variable can hold more, in programs that the script starts; the file does.
        variables[b"ROCKBOT_INPUT"] = text
    with open(job + "/key", "rb") as file:
        key = file.read()
    if key:
        variables[b"TOOLBUS_IDEMPOTENCY_KEY"] = key
    if packages:
        # For an interpreter that the script starts.
        variables[b"PYTHONPATH"] = packages.encode("utf-8", "surrogateescape")
    for name, value in variables.items():
        posix.putenv(name, value)
        posix.environ[name] = value
        # Filled from there when it was imported.
        if "os" in sys.modules:
            sys.modules["os"].environ._data[name] = value
    if "os" in sys.modules:
        sys.modules["os"].environ._data.pop(b"TOOLBUS_JOB", None)
    sys.argv[:] = ["script.py"]
    if text:
        given = posix.open(job + "/input", posix.O_RDONLY)
        posix.dup2(given, 0)
        posix.close(given)
    with open(job + "/script.py", "rb") as file:
        return file.read(), posix.environ[b"TOOLBUS_OUTPUT"].decode()
