# Becomes a script. Beside what it prints, the value of its last expression and its open figures come back.
import sys

ONLY_AST = 0x400
# Larger ones are compiled at once: their tree takes many times their size.
LARGEST_TREE = 100_000
LONGEST_VALUE = 64_000
# Methods whose result is a number of characters, which no script is after.
WRITES = ("write", "write_bytes", "write_text", "writerow")
PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp", ".gif")
EXCEPTHOOK = sys.excepthook


class QuietFigures:
    """Finds no module: silences the advice of `pyplot.show` that there is no screen."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "matplotlib.pyplot":
            import warnings

            warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")


def ends_by_printing(source):
    """Whether no value of a last expression counts, but what is printed last."""
    last_line = source[source.rstrip().rfind(b"\n") + 1 :]
    return last_line.startswith(b"print(") and b";" not in last_line


def halves(source, name="script.py"):
    """The program, and the expression that it ends with, if it does."""
    whole = lambda: compile(source, name, "exec", dont_inherit=True)
    if len(source) > LARGEST_TREE or ends_by_printing(source):
        return whole(), None
    import _ast

    try:
        tree = compile(source, name, "exec", ONLY_AST, True)
        if not tree.body or not isinstance(tree.body[-1], _ast.Expr):
            return whole(), None
        last = _ast.Expression(tree.body.pop().value)
        if isinstance(last.body, _ast.Call) and getattr(last.body.func, "attr", None) in WRITES:
            return whole(), None
        return (
            compile(tree, name, "exec", dont_inherit=True),
            compile(last, name, "eval", dont_inherit=True),
        )
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    # Says what is wrong, if anything is, as it does of any file.
    return whole(), None


def execute(source, variables, name="script.py"):
    """Runs a program as `exec(compile(…))` does, without `compile`: its first use takes a millisecond, in which it makes the
    classes of syntax trees. `exec` alone knows no name, which the program gets when it begins.
    """
    import _imp, _warnings

    filters = sys.modules.get("warnings", _warnings).filters
    # A warning has the name, too: what causes one is compiled again, as what is wrong.
    refused = ("error", None, Warning, None, 0)
    has_begun = False

    def begin(frame, event, _):
        nonlocal has_begun
        if event == "call" and frame.f_globals is variables:
            sys.setprofile(None)
            filters.remove(refused)
            _imp._fix_co_filename(frame.f_code, name)
            has_begun = True

    filters.insert(0, refused)
    sys.setprofile(begin)
    try:
        exec(source, variables)
    except BaseException:
        if has_begun:
            raise
    if not has_begun:
        sys.setprofile(None)
        filters.remove(refused)
        exec(compile(source, name, "exec", dont_inherit=True), variables)


def is_picture(name):
    return name.lower().endswith(PICTURES)


def save(value, folder, has_pictures=None):
    pyplot = sys.modules.get("matplotlib.pyplot")
    numbers = pyplot.get_fignums() if pyplot else ()
    try:
        if value is not None:
            with open(folder + "/.toolbus-value", "wb") as file:
                file.write(value[:LONGEST_VALUE].encode("utf-8", "backslashreplace"))
        if numbers:
            import os

            if has_pictures is None:
                has_pictures = any(map(is_picture, os.listdir(folder)))
            if not has_pictures:
                for number in numbers:
                    pyplot.figure(number).savefig(f"{folder}/figure-{number}.png")
    except OSError:
        # There is no room for it, or no folder any more.
        pass


def main_module():
    """The module in which scripts run, where they and others find it."""
    if sys.stdout:
        # What was printed is kept when the script is stopped, and is reported while it runs.
        sys.stdout.reconfigure(line_buffering=True)
    if QuietFigures not in sys.meta_path:
        sys.meta_path.insert(0, QuietFigures)
    module = type(sys)("__main__")
    module.__builtins__ = __builtins__
    module.__file__ = "script.py"
    # Processes that `multiprocessing` spawns import it under this name.
    module.__spec__ = type(sys.__spec__)("script", None)
    sys.modules["__main__"] = module
    return module


def without_own_frames(error):
    """The first frames are of this file, and none of the script's."""
    while error.__traceback__ and error.__traceback__.tb_frame.f_globals is globals():
        error.__traceback__ = error.__traceback__.tb_next


def run(source, folder):
    module = main_module()
    try:
        value = None
        if ends_by_printing(source):
            execute(source, module.__dict__)
        else:
            program, last = halves(source)
            exec(program, module.__dict__)
            value = last and eval(last, module.__dict__)
        save(None if value is None else repr(value), folder)
    except SystemExit as end:
        if not end.code:
            save(None, folder)
        raise
    except BaseException as error:
        without_own_frames(error)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def end(script, *args):
    """Runs a script and ends as an interpreter does, but takes down nothing that the script cannot see."""
    code = 0
    try:
        script(*args)
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        # The hook of the script has failed at an error.
        without_own_frames(error)
        EXCEPTHOOK(type(error), error, error.__traceback__)
        code = 1
    if code is None:
        code = 0
    elif not isinstance(code, int):
        try:
            print(code, file=sys.stderr)
        except Exception:
            pass
        code = 1
    import atexit

    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        written = flush()
        variables = sys.modules.pop("__main__").__dict__
        for name in list(variables):
            if name != "__builtins__":
                variables[name] = None
        gc.collect()
        written = flush() and written
    except BaseException as error:
        EXCEPTHOOK(type(error), error, error.__traceback__)
        written = flush()
    posix._exit(code & 255 if written else 120)


def flush():
    written = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:
            written = False
    return written
