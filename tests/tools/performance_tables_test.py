"""tools/performance_tables.py turns the results of weft_bench into tables and a picture."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

TOOL = pathlib.Path(__file__).parents[2] / "tools/performance_tables.py"


def result(row, peer, weft, ratio, unit="us"):
    return {"row": row, "peer": peer, "weft": weft, "unit": unit, "ratio": ratio,
            "low": ratio / 2, "high": ratio * 2, "peer_value": weft * ratio}


RESULTS = [
    result("small call", "torch shm", 25, 10),
    result("small call, blocking", "futex", 40, 0.25),
    result("small call, tcp", "torch uv", 1400, 3.5),
    result("small call, tcp", "raw tcp", 1400, 0.125),
    result("in flight 64", "torch shm", 87_600, 0.6, "calls/s"),
    result("in flight 64, blocking", "none", 90_000, 0, "calls/s"),
]


class PerformanceTables(unittest.TestCase):
    def run_tool(self, text, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "results.json"
            file.write_text(text)
            svg = pathlib.Path(folder) / "picture.svg"
            done = subprocess.run([sys.executable, TOOL, file, *(["--svg", svg] if arguments else [])],
                                  capture_output=True, text=True)
            return done, svg.read_text() if svg.exists() else None

    def test_each_mode_has_its_table_and_peers(self):
        done, _ = self.run_tool(json.dumps(RESULTS))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("### `weft`\n\n| row | Weft | torch shm |\n|---|---|---|\n"
                      "| small call | 25 us | 10 [5, 20] |\n"
                      "| in flight 64 | 87.6 k/s | 0.6 [0.3, 1.2] |\n", done.stdout)
        self.assertIn("### `weft blocking`\n\n| row | Weft | futex |\n|---|---|---|\n"
                      "| small call | 40 us | 0.25 [0.125, 0.5] |\n", done.stdout)
        self.assertIn("| small call | 1.4 ms | 3.5 [1.75, 7] | 0.125 [0.0625, 0.25] |", done.stdout)

    def test_the_picture_has_a_bar_for_each_ratio_against_torch(self):
        done, svg = self.run_tool(json.dumps(RESULTS), "--svg")
        self.assertEqual(done.returncode, 0, done.stderr)
        root = xml.etree.ElementTree.fromstring(svg)
        space = "{http://www.w3.org/2000/svg}"
        texts = [text.text for text in root.iter(space + "text")]
        for ratio in ("10", "3.5", "0.6"):
            self.assertIn(ratio, texts)
        # The background, two keys and three bars.
        self.assertEqual(len(list(root.iter(space + "rect"))), 6)
        self.assertTrue(all(float(rect.get("width").rstrip("%")) > 0 for rect in root.iter(space + "rect")))

    def test_without_a_row_against_torch_there_is_no_picture(self):
        done, svg = self.run_tool(json.dumps(RESULTS[1:2]), "--svg")
        self.assertEqual((done.returncode, svg), (1, None))
        self.assertIn("no row against torch", done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def test_a_file_that_is_no_result_is_named(self):
        for text in ("", "{", '[{"row": 1}]', "[1]"):
            done, _ = self.run_tool(text)
            self.assertEqual(done.returncode, 1)
            self.assertIn("results.json", done.stderr)
            self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    unittest.main()
