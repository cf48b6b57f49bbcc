#!/usr/bin/env python3
"""Checks that .ci/figures.py notices figures of a document that are not those of the file. Run by tests/run."""

import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / ".ci"))
import figures

GATES = [{"what": "throughput, of another", "wanted": "≥ 0.7", "measured": "0.43", "isMet": False}]
ROWS = [
    {"callers": 1, "side": "bus", "callsPerSecond": 12345.6, "p50Ms": 0.0705},
    {"callers": 32, "side": "bus", "callsPerSecond": 99.4, "p50Ms": 1},
]
ENTRY = {"command": "c", "machine": "m", "date": "d", "commit": "0", "figures": {"rows": ROWS, "gates": GATES}}
OTHER = ENTRY | {"figures": {"rows": [], "took": 7}}
PRINTED = """
<!-- figures of one: its rows -->
| in flight | side | calls/s | p50 ms |
|---|---|---:|---:|
| 1 | bus | 12 346 | 0.070 |
| 32 | bus | 99 | 1.000 |
"""
CHOSEN = """
<!-- figures of one
rows > 32 > bus > p50Ms; @two > took | -
gates > throughput, of another > measured
-->
| | measured | wanted |
|---|---|---|
| times | 1.0 and 7 ms | 5 |
| share | 0.43: not reached | 0.7 |
"""


class Figures(unittest.TestCase):
    def problems(self, text: str, entries: dict | None = None) -> str:
        with tempfile.TemporaryDirectory() as folder:
            document, file = Path(folder, "a.md"), Path(folder, "f.json")
            document.write_text(text, "utf-8")
            file.write_text(json.dumps(entries or {"one": ENTRY, "two": OTHER}), "utf-8")
            return "\n".join(figures.problems([document], file)).replace(folder + "/", "")

    def test_figures_of_the_file_agree_when_rounded(self):
        self.assertEqual(self.problems(PRINTED + CHOSEN), "")

    def test_another_figure_is_told_with_its_place(self):
        text = PRINTED.replace("12 346", "12 347") + CHOSEN.replace("7 ms", "8 ms")
        self.assertEqual(
            self.problems(text),
            "a.md:2: bus at 1, calls/s: 12 347, but the file says 12345.6\n"
            "a.md:8: times: 1.0 and 8 ms, but the file says 1, 7",
        )

    def test_a_row_more_or_less_is_told(self):
        row = "| 32 | bus | 99 | 1.000 |\n"
        self.assertIn("1 rows, but the entry has 2", self.problems(PRINTED.replace(row, "") + CHOSEN))
        fewer = CHOSEN.replace("gates > throughput, of another > measured\n", "")
        self.assertIn("1 lines of paths for 2 rows", self.problems(PRINTED + fewer))

    def test_a_path_to_nothing_agrees_with_nothing(self):
        self.assertIn("the file says 1, None", self.problems(PRINTED + CHOSEN.replace("@two > took", "@two > gave")))

    def test_what_is_left_out_is_told(self):
        self.assertEqual(
            self.problems(PRINTED),
            "f.json: two is in no document\n"
            "f.json: one: the missed gate 'throughput, of another' is in no document",
        )

    def test_a_comment_without_a_table_and_an_unknown_entry_are_told(self):
        text = PRINTED + CHOSEN
        self.assertIn("no table follows it", self.problems(text + "\n<!-- figures of one -->\nText.\n"))
        self.assertIn("no entry three", self.problems(text + PRINTED.replace("of one", "of three")))

    def test_an_entry_says_how_it_was_measured(self):
        del (without := dict(OTHER))["machine"]
        self.assertIn("two has no machine", self.problems(PRINTED + CHOSEN, {"one": ENTRY, "two": without}))


if __name__ == "__main__":
    unittest.main()
