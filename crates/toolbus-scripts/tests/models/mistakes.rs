//! Scripts that fail, and those that end otherwise than their author thought.

use insta::assert_snapshot;
use serde_json::json;
use toolbus_sandbox::Level;
use toolbus_scripts::config::PoolMode;

use crate::fixture::{mode, result, result_at, result_at_both};

#[tokio::test]
async fn mistakes_of_syntax_are_shown_with_their_line() {
    assert_snapshot!(result_at_both("for n in range(3)\n    print(n)\n").await, @r#"
    isError: Script failed (exit 1):
      File "script.py", line 1
        for n in range(3)
    SyntaxError: expected ':'
    "#);
    assert_snapshot!(result_at_both("def main():\nprint('hi')\n").await, @r#"
    isError: Script failed (exit 1):
      File "script.py", line 2
        print('hi')
    IndentationError: expected an indented block after function definition on line 1
    "#);
    assert_snapshot!(result("print('it's')\n").await, @r#"
    isError: Script failed (exit 1):
      File "script.py", line 1
        print('it's')
    SyntaxError: unterminated string literal (detected at line 1)
    "#);
    assert_snapshot!(result("print('a')\nreturn 1\n").await, @r#"
    isError: Script failed (exit 1):
      File "script.py", line 2
    SyntaxError: 'return' outside function
    "#);
}

#[tokio::test]
async fn errors_show_the_lines_that_led_to_them() {
    let nested = r#"
def email(user):
    return user["email"].lower()

def emails(users):
    for user in users:
        yield email(user)

users = [{"name": "Ada", "email": "A@x"}, {"name": "Tim"}]
for found in emails(users):
    print(found)
"#;
    assert_snapshot!(result_at_both(nested).await, @r#"
    isError: Script failed (exit 1):
    a@x
    stderr:
    Traceback (most recent call last):
      File "script.py", line 10, in <module>
        for found in emails(users):
      File "script.py", line 7, in emails
        yield email(user)
      File "script.py", line 3, in email
        return user["email"].lower()
    KeyError: 'email'
    "#);
    assert_snapshot!(result("total = 10\ncount = 0\nprint(total / count)\n").await, @r#"
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      File "script.py", line 3, in <module>
        print(total / count)
    ZeroDivisionError: division by zero
    "#);
    assert_snapshot!(result("print(reslt)\n").await, @r#"
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      File "script.py", line 1, in <module>
        print(reslt)
    NameError: name 'reslt' is not defined
    "#);
}

#[tokio::test]
async fn a_cause_is_shown_before_what_it_caused() {
    let script = r#"
import json

class ConfigError(Exception):
    pass

def load(text):
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"cannot read {text!r}") from error

load("{'a': 1}")
"#;
    assert_snapshot!(result_at_both(script).await, @r#"
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      File "script.py", line 9, in load
        return json.loads(text)
      [library]
    json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)

    The above exception was the direct cause of the following exception:

    Traceback (most recent call last):
      File "script.py", line 13, in <module>
        load("{'a': 1}")
      File "script.py", line 11, in load
        raise ConfigError(f"cannot read {text!r}") from error
    ConfigError: cannot read "{'a': 1}"
    "#);
}

#[tokio::test]
async fn a_hook_for_errors_that_fails_is_shown_and_what_was_printed_is_kept() {
    let script = r#"
import sys

def hook(kind, error, traceback):
    print(f"{kind.__name__} is told", end="")
    raise OSError("nowhere to tell it")

sys.excepthook = hook
raise ValueError("wrong")
"#;
    assert_snapshot!(result_at_both(script).await, @r#"
    isError: Script failed (exit 1):
    ValueError is told
    stderr:
    Traceback (most recent call last):
      File "script.py", line 9, in <module>
        raise ValueError("wrong")
    ValueError: wrong

    During handling of the above exception, another exception occurred:

    Traceback (most recent call last):
      File "script.py", line 6, in hook
        raise OSError("nowhere to tell it")
    OSError: nowhere to tell it
    "#);
}

#[tokio::test]
async fn a_script_ends_itself_with_a_text_a_number_or_nothing() {
    assert_snapshot!(result_at_both("import sys\nprint('checked')\nsys.exit('nothing to do')\n").await, @"
    isError: Script failed (exit 1):
    checked
    stderr:
    nothing to do
    ");
    assert_snapshot!(result_at_both("import sys\nsys.exit(3)\n").await, @"
    isError: Script failed (exit 3):
    (no output)
    ");
    assert_snapshot!(result_at_both("print('done')\nexit()\nprint('never')\n").await, @"done");
    let arguments = r#"
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("file")
print(parser.parse_args())
"#;
    assert_snapshot!(result(arguments).await, @"
    isError: Script failed (exit 2):
    usage: script.py [-h] file
    script.py: error: the following arguments are required: file
    ");
}

#[tokio::test]
async fn a_question_to_the_user_is_an_error_with_advice() {
    assert_snapshot!(result_at_both("name = input('Your name? ')\nprint(f'Hello {name}')\n").await, @r#"
    isError: Script failed (exit 1):
    Your name? 
    stderr:
    Traceback (most recent call last):
      File "script.py", line 1, in <module>
        name = input('Your name? ')
    EOFError: EOF when reading a line
    [Nobody answers questions of a script. Give what it reads in input_data.]
    "#);
}

#[tokio::test]
async fn a_loop_without_an_end_is_ended_and_shows_what_it_printed() {
    let script = "n = 0\nprint('starting')\nwhile True:\n    n += 1\n";
    let shown = result_at(Level::Full, &json!({"script": script, "timeout_seconds": 1})).await;
    // Its time is wall-clock time, and as much CPU time.
    let last = shown.lines().next_back().unwrap();
    assert_snapshot!(last, @"starting");
}

#[tokio::test]
async fn a_recursion_without_an_end_raises_and_one_that_is_allowed_runs() {
    let script = "def depth(n):\n    return depth(n + 1)\n\ndepth(0)\n";
    // A forked interpreter has some calls of its own above the script.
    let count = if mode() == PoolMode::Fork { "985" } else { "992" };
    let arguments = json!({"script": script});
    let full = result_at(Level::Full, &arguments).await.replace(count, "many");
    assert_eq!(full, result_at(Level::NoNamespaces, &arguments).await.replace("992", "many"));
    assert_snapshot!(full, @r#"
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      File "script.py", line 4, in <module>
        depth(0)
      File "script.py", line 2, in depth
        return depth(n + 1)
      File "script.py", line 2, in depth
        return depth(n + 1)
      File "script.py", line 2, in depth
        return depth(n + 1)
      [Previous line repeated many more times]
    RecursionError: maximum recursion depth exceeded
    "#);
    let script = r#"
import sys, threading

def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)

def main():
    print(depth(50_000))

sys.setrecursionlimit(10**6)
threading.stack_size(64 * 1024 * 1024)
thread = threading.Thread(target=main)
thread.start()
thread.join()
"#;
    assert_snapshot!(result_at_both(script).await, @"50000");
}

#[tokio::test]
async fn memory_that_is_not_there_is_an_error_or_ends_the_script() {
    assert_snapshot!(result("block = bytearray(1 << 40)\n").await, @r#"
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      File "script.py", line 1, in <module>
        block = bytearray(1 << 40)
    MemoryError
    [A script may use 256 MiB of memory. Work on less at a time.]
    "#);
    let many = "rows = []\nprint('reading')\nwhile True:\n    rows.append(' ' * 10_000_000)\n";
    assert_snapshot!(result(many).await, @"
    isError: The script used more than 256 MiB of memory, and was stopped. Work on less at a time, for example by reading files in pieces.
    Its output until then:
    reading
    ");
}

#[tokio::test]
async fn output_that_is_no_text_or_very_long_stays_readable() {
    let binary = "import sys\nsys.stdout.buffer.write(b'\\x89PNG\\xff\\xfe ok')\n";
    assert_snapshot!(result_at_both(binary).await.escape_debug(), @"�PNG�� ok");
    assert_snapshot!(result_at_both("print('before')\nprint('half \\ud83d a pair')\n").await, @r#"
    isError: Script failed (exit 1):
    before
    stderr:
    Traceback (most recent call last):
      File "script.py", line 2, in <module>
        print('half \ud83d a pair')
    UnicodeEncodeError: 'utf-8' codec can't encode character '\ud83d' in position 5: surrogates not allowed
    "#);
    let controls = "print('a\\tb', 'c\\rd', '\\x1b[31mred\\x1b[0m')\n";
    assert_snapshot!(result_at_both(controls).await.escape_debug(), @r"a\tb c\rd \u{1b}[31mred\u{1b}[0m\n");
    let long = result("print('x' * 70_000)\nprint('end')\n").await;
    assert_eq!((long.len(), long.ends_with("x\nend\n")), (70_005, true), "a successful result is whole");
    let failed = result("print('z' * 70_000)\nraise SystemExit(1)\n").await;
    let parts: Vec<&str> = failed.split('z').filter(|part| !part.is_empty()).collect();
    assert_snapshot!(parts.join("…"), @"
    isError: Script failed (exit 1):
    …
    [54001 characters left out]
    …
    ");
}

#[tokio::test]
async fn warnings_and_logs_are_shown_where_nothing_else_is() {
    let script = r#"
import logging, warnings

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
warnings.warn("this will go away", DeprecationWarning)
logging.info("reading %d rows", 3)
logging.warning("row 2 is empty")
"#;
    assert_snapshot!(result_at_both(script).await, @r#"
    (no output)
    stderr:
    script.py:5: DeprecationWarning: this will go away
      warnings.warn("this will go away", DeprecationWarning)
    INFO reading 3 rows
    WARNING row 2 is empty
    "#);
    assert_snapshot!(result_at_both(&format!("{script}print('3 rows')\n")).await, @"3 rows");
    assert_snapshot!(result("import logging\nlogging.getLogger('app').info('never shown')\n").await, @"(no output)");
}

#[tokio::test]
async fn a_program_has_its_name_in_warnings_tracebacks_and_code() {
    let names = r#"
import sys
def name(): return name.__code__.co_filename
print(name(), sys._getframe().f_code.co_filename, __file__, sys.getprofile(), sys.modules["_warnings"].filters[0][0])
"#;
    assert_snapshot!(result_at_both(names).await, @"script.py script.py script.py None default");
    assert_snapshot!(result_at_both(&format!("{names}assert (1, 'always true')\nprint(1 / 0)\n")).await, @r#"
    isError: Script failed (exit 1):
    script.py script.py script.py None default
    stderr:
    script.py:5: SyntaxWarning: assertion is always true, perhaps remove parentheses?
      assert (1, 'always true')
    Traceback (most recent call last):
      File "script.py", line 6, in <module>
        print(1 / 0)
    ZeroDivisionError: division by zero
    "#);
}

#[tokio::test]
async fn modules_that_a_script_writes_are_imported_and_relative_ones_are_not() {
    let script = r#"
import os, sys
from pathlib import Path

Path("helpers.py").write_text("def greet(name):\n    return f'Hello {name}'\n")
Path("shapes").mkdir()
Path("shapes/__init__.py").write_text("from .square import area\n")
Path("shapes/square.py").write_text("def area(side):\n    return side * side\n")
import helpers
from shapes import area
print(helpers.greet("Ada"), area(3), os.path.basename(sys.modules["shapes.square"].__file__))
for path in "helpers.py", "shapes/__init__.py", "shapes/square.py":
    os.remove(path)
from .helpers import greet
"#;
    assert_snapshot!(result_at_both(script).await, @r#"
    isError: Script failed (exit 1):
    Hello Ada 9 square.py
    stderr:
    Traceback (most recent call last):
      File "script.py", line 14, in <module>
        from .helpers import greet
    ImportError: attempted relative import with no known parent package
    "#);
}

#[tokio::test]
async fn a_failed_test_is_a_failed_script() {
    let script = r#"
import unittest

class Sums(unittest.TestCase):
    def test_small(self):
        self.assertEqual(1 + 1, 2)

    def test_wrong(self):
        self.assertEqual(sum([1, 2]), 4)

if __name__ == "__main__":
    unittest.main(argv=["sums"])
"#;
    let shown = result(script).await;
    let stable: Vec<&str> = shown.lines().filter(|line| !line.starts_with("Ran ")).collect();
    assert_snapshot!(stable.join("\n"), @r#"
    isError: Script failed (exit 1):
    .F
    ======================================================================
    FAIL: test_wrong (__main__.Sums.test_wrong)
    ----------------------------------------------------------------------
    Traceback (most recent call last):
      File "script.py", line 9, in test_wrong
        self.assertEqual(sum([1, 2]), 4)
    AssertionError: 3 != 4

    ----------------------------------------------------------------------

    FAILED (failures=1)
    "#);
}
