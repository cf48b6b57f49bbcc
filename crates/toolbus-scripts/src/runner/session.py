# Runs after run.py: one script after another, in one module.
# Argument: the folder of packages, if any.
import builtins, linecache, os, traceback

# Sources of earlier scripts that tracebacks can show.
KEPT_SOURCES = 64


class Session:
    def __init__(self, packages):
        builtins.exit = builtins.quit = sys.exit
        for descriptor in 3, 4:
            os.set_inheritable(descriptor, False)
        self.process = os.getpid()
        self.number = 0
        self.job = os.environ.pop("TOOLBUS_JOB")
        self.output = os.environ["TOOLBUS_OUTPUT"]
        os.environ["TOOLBUS_INPUT_FILE"] = self.job + "/input"
        # As of a single script: its own folder first, then packages, and last where `multiprocessing` finds the script.
        sys.path[0] = os.getcwd()
        sys.path.extend([packages, self.job] if packages else [self.job])
        if packages:
            # For an interpreter that a script starts.
            os.environ["PYTHONPATH"] = packages
        sys.argv[:] = ["script.py"]
        self.module = main_module()

    def serve(self):
        report = b"."
        while True:
            os.write(4, report)
            if not os.read(3, 1):
                os._exit(0)
            code = self.run()
            for stream in sys.stdout, sys.stderr:
                try:
                    stream.flush()
                except Exception:
                    # The script has closed or replaced it.
                    pass
            if os.getpid() != self.process:
                os._exit(code)
            report = bytes([code])

    def run(self):
        """Runs the script that is there, and returns its exit code."""
        self.number += 1
        self.take_input()
        with open(self.job + "/script.py", "rb") as file:
            source = file.read()
        name = f"script-{self.number}.py"
        linecache.cache.pop(f"script-{self.number - KEPT_SOURCES}.py", None)
        text = source.decode("utf-8", "replace")
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        try:
            os.unlink(self.output + "/.toolbus-value")
        except OSError:
            pass
        before = self.pictures()
        try:
            program, last = halves(source, name)
            exec(program, self.module.__dict__)
            value = last and eval(last, self.module.__dict__)
            self.save(None if value is None else repr(value), before)
            return 0
        except SystemExit as end:
            try:
                return self.exit_code(end.code, before)
            except BaseException as error:
                show(error)
                return 1
        except BaseException as error:
            show(error)
            return 1

    def take_input(self):
        with open(self.job + "/input", "rb") as file:
            text = file.read()
            os.dup2(file.fileno(), 0)
        os.lseek(0, 0, os.SEEK_SET)
        # Without what is left of earlier input.
        sys.stdin = open(0, errors="surrogateescape", closefd=False)
        os.environb.pop(b"ROCKBOT_INPUT", None)
        if b"\0" not in text and len(text) < 128 * 1024 - len("ROCKBOT_INPUT="):
            os.environb[b"ROCKBOT_INPUT"] = text
        os.environb.pop(b"TOOLBUS_IDEMPOTENCY_KEY", None)
        with open(self.job + "/key", "rb") as file:
            key = file.read()
        if key:
            os.environb[b"TOOLBUS_IDEMPOTENCY_KEY"] = key

    def exit_code(self, code, before):
        if code is None or code == 0:
            self.save(None, before)
            return 0
        if isinstance(code, int):
            return code & 0xFF
        print(code, file=sys.stderr)
        return 1

    def pictures(self):
        try:
            with os.scandir(self.output) as files:
                return {(file.name, file.stat().st_mtime_ns) for file in files if is_picture(file.name)}
        except OSError:
            return set()

    def save(self, value, before):
        """Saves value and figures of this script, unless it has saved pictures itself."""
        try:
            save(value, self.output, bool(self.pictures() - before))
        finally:
            # Also one that cannot be drawn, which would fail at the end of each script.
            pyplot = sys.modules.get("matplotlib.pyplot")
            if pyplot:
                pyplot.close("all")


def show(error):
    without_own_frames(error)
    if sys.excepthook is sys.__excepthook__:
        # Finds the lines of scripts that are no files any more.
        traceback.print_exception(type(error), error, error.__traceback__)
    else:
        sys.excepthook(type(error), error, error.__traceback__)
