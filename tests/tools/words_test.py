"""No text of the project uses a word that docs/words.md bans.

The page's last table has one word per row. A row whose word carries a remark in parentheses bans one meaning of
it, which no test can tell from the others: those rows are left to the reader. The other words are looked for, in
any case and also as a part of an identifier, in all pages, sources and comments.
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).parents[2]
SUFFIXES = {".md", ".h", ".cc", ".proto", ".py", ".sh", ".cmake", ".txt", ".pml"}
# Pages that must name the old words, and this test.
EXEMPT = {"docs/words.md", "docs/upgrading.md", "tests/tools/words_test.py"}
SKIPPED = {"build", ".deps", ".git", "third_party", "corpus", "scenarios"}


def banned():
    table = (ROOT / "docs/words.md").read_text().partition("## Words that we do not use")[2]
    rows = re.findall(r"^\| ([^|]+?) \|", table, re.M)
    return [row for row in rows if re.fullmatch(r"[a-z ]+", row) and row != "old"]


def files(folder=ROOT):
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in SKIPPED:
            yield from files(path)
        elif path.suffix in SUFFIXES and path.relative_to(ROOT).as_posix() not in EXEMPT:
            yield path


def split(line):
    """The line with identifiers taken apart: newcomerCore and new_comer read as words."""
    return re.sub(r"([a-z])([A-Z])", r"\1 \2", line).replace("_", " ").lower()


def uses(text, words):
    pattern = re.compile(r"\b(" + "|".join(re.escape(word) for word in words) + r")\b")
    return [(number, match[1]) for number, line in enumerate(text.splitlines(), 1)
            for match in pattern.finditer(split(line))]


class WordsTest(unittest.TestCase):
    def test_the_table_is_read(self):
        self.assertIn("verdict", banned())
        self.assertIn("newcomer", banned())
        self.assertGreater(len(banned()), 15)

    def test_a_planted_word_is_found(self):
        self.assertEqual(uses("// fine\nint newcomer_count;\nclass VerdictList;\n", ["newcomer", "verdict"]),
                         [(2, "newcomer"), (3, "verdict")])

    def test_no_file_uses_a_banned_word(self):
        words = banned()
        found = [f"{path.relative_to(ROOT)}:{number}: '{word}'" for path in files()
                 for number, word in uses(path.read_text(errors="replace"), words)]
        self.assertEqual(found, [], "docs/words.md says what to write instead\n" + "\n".join(found[:50]))


if __name__ == "__main__":
    unittest.main()
