//! Archives and compressed files.

use insta::assert_snapshot;

use crate::fixture::{is_root, result, result_at_both};

#[tokio::test]
async fn archives_in_memory_are_written_and_read() {
    let script = r#"
import bz2, gzip, io, lzma, tarfile, zipfile, zlib

buffer = io.BytesIO()
with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("a.txt", "hello " * 100)
    archive.writestr("folder/b.txt", "ü")
with zipfile.ZipFile(buffer) as archive:
    print(archive.namelist(), archive.testzip(), archive.getinfo("a.txt").file_size)
    print(archive.read("folder/b.txt").decode())
buffer = io.BytesIO()
with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
    entry = tarfile.TarInfo("c.txt")
    entry.size = 5
    archive.addfile(entry, io.BytesIO(b"world"))
buffer.seek(0)
with tarfile.open(fileobj=buffer) as archive:
    print(archive.getnames(), archive.extractfile("c.txt").read())
data = b"abc" * 1000
for module in gzip, bz2, lzma, zlib:
    print(module.__name__, module.decompress(module.compress(data)) == data, len(module.compress(data)) < 200)
"#;
    assert_snapshot!(result_at_both(script).await, @"
    ['a.txt', 'folder/b.txt'] None 600
    ü
    ['c.txt'] b'world'
    gzip True True
    bz2 True True
    lzma True True
    zlib True True
    ");
}

#[tokio::test]
async fn folders_are_packed_and_unpacked() {
    let script = r##"
import shutil, tarfile, zipfile
from pathlib import Path

project = Path("project")
(project / "src").mkdir(parents=True)
(project / "src" / "main.py").write_text("print('hi')\n")
(project / "README.md").write_text("# Project\n")
for kind in "zip", "gztar", "xztar":
    archive = shutil.make_archive("project-" + kind, kind, root_dir=project)
    shutil.unpack_archive(archive, "out-" + kind)
    print(Path(archive).name, sorted(str(path.relative_to("out-" + kind)) for path in Path("out-" + kind).rglob("*.*")))
with tarfile.open("project-gztar.tar.gz") as archive:
    archive.extractall("again")
with zipfile.ZipFile("project-zip.zip") as archive:
    archive.extractall("again-zip")
print(Path("again/src/main.py").read_text() == Path("again-zip/src/main.py").read_text())
shutil.rmtree("again")
print(sorted(path.name for path in Path().iterdir() if path.is_dir()))
for path in Path().iterdir():
    shutil.rmtree(path) if path.is_dir() else path.unlink()
"##;
    assert_snapshot!(result_at_both(script).await, @"
    project-zip.zip ['README.md', 'src/main.py']
    project-gztar.tar.gz ['README.md', 'src/main.py']
    project-xztar.tar.xz ['README.md', 'src/main.py']
    True
    ['again-zip', 'out-gztar', 'out-xztar', 'out-zip', 'project']
    ");
}

#[tokio::test]
async fn files_are_copied_with_their_modes_and_times() {
    let script = r##"
import os, shutil, stat
from pathlib import Path

Path("a").mkdir()
Path("a/run.sh").write_text("#!/bin/sh\n")
os.chmod("a/run.sh", 0o750)
os.utime("a/run.sh", (1_000_000_000, 1_000_000_000))
shutil.copy("a/run.sh", "copied.sh")
shutil.copy2("a/run.sh", "same.sh")
shutil.copytree("a", "b")
shutil.move("b", "c")
for path in "copied.sh", "same.sh", "c/run.sh":
    found = os.stat(path)
    print(path, stat.filemode(found.st_mode), int(found.st_mtime) == 1_000_000_000)
for path in "copied.sh", "same.sh", "a/run.sh", "c/run.sh":
    os.remove(path)
"##;
    // A script without namespaces may do so if its user is its own.
    let shown = if is_root() { result_at_both(script).await } else { result(script).await };
    assert_snapshot!(shown, @"
    copied.sh -rwxr-x--- False
    same.sh -rwxr-x--- True
    c/run.sh -rwxr-x--- True
    ");
}
