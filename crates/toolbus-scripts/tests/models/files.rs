//! Files: temporary ones, those that come back, and those that do not.

use insta::assert_snapshot;

use crate::fixture::{result, result_at_both};

#[tokio::test]
async fn temporary_files_and_folders_are_made_and_walked() {
    let script = r#"
import glob, os, tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    for name in "b/two.txt", "a/one.txt", "a/deep/three.log":
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    for root, folders, files in os.walk(folder):
        folders.sort()
        print(os.path.relpath(root, folder), folders, sorted(files))
    print(sorted(os.path.basename(path) for path in glob.glob(folder + "/**/*.txt", recursive=True)))
    print(sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()))
print(os.path.exists(folder))
with tempfile.NamedTemporaryFile("w+", suffix=".csv") as file:
    file.write("a,b\n")
    file.flush()
    print(open(file.name).read().strip(), Path(file.name).suffix)
with tempfile.TemporaryFile() as file, tempfile.SpooledTemporaryFile() as spooled:
    print(file.write(b"x" * 100_000), spooled.write(b"y"))
print(os.listdir("."), Path.home() == Path.cwd())
"#;
    assert_snapshot!(result_at_both(script).await, @"
    . ['a', 'b'] []
    a ['deep'] ['one.txt']
    a/deep [] ['three.log']
    b [] ['two.txt']
    ['one.txt', 'two.txt']
    34
    False
    a,b .csv
    100000 1
    [] True
    ");
}

#[tokio::test]
async fn files_in_the_output_folder_come_back() {
    let script = r##"
import csv, json, os, struct, zlib
from pathlib import Path

out = Path(os.environ["TOOLBUS_OUTPUT"])

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

header = struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)
pixels = zlib.compress(b"\0\xff\0\0\0\xff\0" * 2, 9)
chunks = chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
(out / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)
(out / "bar.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"><rect width="9" height="4"/></svg>')
with open(out / "table.csv", "w", newline="") as file:
    csv.writer(file).writerows([["n", "square"], [2, 4]])
(out / "data.json").write_text(json.dumps({"ü": [1, 2]}, ensure_ascii=False))
"##;
    assert_snapshot!(result_at_both(script).await, @r#"
    Files: bar.svg, data.json, dot.png, table.csv
    [toolbus:output/bar.svg image/svg+xml: <svg xmlns="http://www.w3.org/2000/svg"><rect width="9" height="4"/></svg>]
    [toolbus:output/data.json application/json: {"ü": [1, 2]}]
    [toolbus:output/dot.png image/png: iVBORw0KGgoAAAAN…]
    [toolbus:output/table.csv text/csv: n,square
    2,4]
    "#);
}

#[tokio::test]
async fn files_in_the_current_folder_are_named_because_they_do_not_come_back() {
    let script = r##"
import os

with open("report.md", "w") as file:
    file.write("# Report\n")
os.makedirs("charts")
with open("charts/one.svg", "w") as file:
    file.write("<svg/>")
print("Saved report.md and charts/one.svg")
"##;
    assert_snapshot!(result_at_both(script).await, @"
    Saved report.md and charts/one.svg
    [Saved in the work folder and not returned: charts/one.svg, report.md. Write to the folder that TOOLBUS_OUTPUT names.]
    ");
}

#[tokio::test]
async fn files_that_are_not_there_and_folders_that_may_not_be_written_are_errors_with_advice() {
    let missing = "import pathlib\nprint(len(pathlib.Path('/mnt/data/sales.csv').read_text()))\n";
    assert_snapshot!(result(missing).await, @r#"
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      File "script.py", line 2, in <module>
        print(len(pathlib.Path('/mnt/data/sales.csv').read_text()))
      [library]
    FileNotFoundError: [Errno 2] No such file or directory: '/mnt/data/sales.csv'
    [A script sees no files but those in input_files, and those that it writes itself.]
    "#);
    let elsewhere = "with open('/usr/lib/result.txt', 'w') as file:\n    file.write('42')\n";
    assert_snapshot!(result_at_both("import os\nos.listdir('/')\n").await, @r#"
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      File "script.py", line 2, in <module>
        os.listdir('/')
    PermissionError: [Errno 13] Permission denied: '/'
    [Write to the current folder, to a temporary one, or to the folder that TOOLBUS_OUTPUT names.]
    "#);
    assert_snapshot!(result(elsewhere).await, @r#"
    isError: Script failed (exit 1):
    Traceback (most recent call last):
      File "script.py", line 1, in <module>
        with open('/usr/lib/result.txt', 'w') as file:
    OSError: [Errno 30] Read-only file system: '/usr/lib/result.txt'
    [Write to the current folder, to a temporary one, or to the folder that TOOLBUS_OUTPUT names.]
    "#);
}

#[tokio::test]
async fn variables_arguments_and_input_are_as_documented() {
    let script = r#"
import os, sys

print(sorted(os.environ))
print(sys.argv, __name__, sys.stdin.read() == "", os.environ.get("HOME") == os.getcwd())
print(os.environ.get("API_KEY"), os.getenv("USER", "nobody"), repr(os.environ["ROCKBOT_INPUT"]))
os.environ["API_KEY"]
"#;
    assert_snapshot!(result_at_both(script).await, @r#"
    isError: Script failed (exit 1):
    ['HOME', 'LANG', 'MPLBACKEND', 'PATH', 'ROCKBOT_INPUT', 'TMPDIR', 'TOOLBUS_INPUT_FILE', 'TOOLBUS_OUTPUT', 'TOOLBUS_PROGRESS_FD', 'USER']
    ['script.py'] __main__ True True
    None script ''
    stderr:
    Traceback (most recent call last):
      File "script.py", line 7, in <module>
        os.environ["API_KEY"]
      [library]
    KeyError: 'API_KEY'
    "#);
}
