"""The table in docs/testing/simulator.md has the rules of tests/sim/breakages.cc, under the same names."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).parents[2]


class SimulatorPageTest(unittest.TestCase):
    def test_names_each_rule_once(self):
        page = (ROOT / "docs/testing/simulator.md").read_text().partition("\n| breakage | profile |")[2]
        rows = re.findall(r"^\| (\w+) \|", page.partition("\n\n")[0], re.M)
        rules = re.findall(r'^    \{"(\w+)"', (ROOT / "tests/sim/breakages.cc").read_text(), re.M)
        self.assertGreater(len(rules), 50)
        self.assertEqual(sorted(rows), sorted(rules))


if __name__ == "__main__":
    unittest.main()
