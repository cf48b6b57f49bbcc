#!/usr/bin/env python3
"""Checks that .ci/vendored.py notices what is wrong with a copy under vendor/, and mends it. Run by tests/run."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Vendored(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.vendor = self.folder / "vendor"
        shutil.copytree(ROOT / "vendor", self.vendor)

    def run_script(self, *arguments: str) -> tuple[int, str]:
        command = [sys.executable, str(ROOT / ".ci/vendored.py"), *arguments]
        result = subprocess.run(
            command, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )
        return result.returncode, result.stdout + result.stderr

    def passes(self, *arguments: str) -> str:
        status, output = self.run_script(*arguments)
        self.assertEqual(status, 0, output)
        return output

    def objects(self, *expected: str) -> None:
        status, output = self.run_script()
        self.assertEqual(status, 1, output)
        for text in expected:
            self.assertIn(text, output)

    def replace(self, name: str, old: str, new: str) -> None:
        file = self.vendor / name
        text = file.read_text("utf-8")
        self.assertIn(old, text)
        file.write_text(text.replace(old, new, 1), "utf-8")

    def test_the_copies_are_as_the_patches_say(self):
        self.assertIn("left out: .editorconfig, .github/ (", self.passes())

    def test_a_changed_line_is_noticed_and_mended(self):
        self.replace("lapin/src/lib.rs", "mod acker;", "mod acker; //")
        self.objects("in src/lib.rs:", "-mod acker;\n+mod acker; //\n")
        self.passes("--write")
        self.passes()

    def test_files_more_and_fewer_are_noticed_and_mended(self):
        (self.vendor / "lapin/build.rs").write_text("fn main() {}\n")
        (self.vendor / "lapin/src/acker.rs").unlink()
        (self.vendor / "other").mkdir()
        self.objects("in build.rs, src/acker.rs:", "+fn main() {}", "vendor/other: ")
        (self.vendor / "other").rmdir()
        self.passes("--write")
        self.assertFalse((self.vendor / "lapin/build.rs").exists())

    def test_a_file_that_became_a_link_is_noticed(self):
        file = self.vendor / "lapin/src/acker.rs"
        target = self.folder / "acker.rs"
        file.rename(target)
        file.symlink_to(target)
        self.objects("in src/acker.rs:", f"+a link to {target}")

    def test_a_patch_that_says_something_else_is_noticed(self):
        self.replace("lapin.patch", "65_536", "65_537")
        self.objects("in src/io_loop.rs:", "-const FRAME_SLACK: usize = 65_537;\n+const FRAME_SLACK: usize = 65_536;\n")

    def test_a_patch_that_does_not_fit_is_noticed(self):
        self.replace("lapin.patch", " const FRAMES_STORAGE", " const FRAMES")
        self.objects("vendor/lapin.patch does not fit lapin-4.12.3", "src/io_loop.rs:")

    def test_a_patch_is_made_from_the_copy(self):
        before = {file.name: file.read_bytes() for file in self.vendor.glob("*.patch")}
        self.passes("--diff")
        self.assertEqual({file.name: file.read_bytes() for file in self.vendor.glob("*.patch")}, before)
        self.replace("lapin/src/io_loop.rs", "65_536", "65_537")
        self.passes("--diff")
        self.assertIn("65_537", (self.vendor / "lapin.patch").read_text("utf-8"))
        self.passes()

    def test_what_is_as_it_should_be_is_not_written(self):
        def times():
            return {path: path.stat().st_mtime_ns for path in self.vendor.rglob("*") if path.is_file()}

        before = times()
        self.passes("--write")
        self.assertEqual(times(), before)

    def test_another_crate_than_the_pinned_one_is_not_read(self):
        self.replace("versions.toml", 'sha256 = "8a', 'sha256 = "8b')
        self.objects("amq-protocol-types: no crate with the checksum 8b", "the published crate has 8a")


if __name__ == "__main__":
    unittest.main()
