"""No text of the project uses a word that docs/words.md bans.

The page's last table has one word per row. It is looked for, in any case, in the plural and also as a part of an
identifier, in all pages, sources and comments. A remark in parentheses bans one meaning of a word. If the project
needs the word in another meaning (OTHER_MEANINGS), a test cannot tell the two apart. Then it looks only for the word
beside that of which the remark speaks: "chain of calls", "a process has ended". The rest is left to the reader.
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).parents[2]
SUFFIXES = {".md", ".h", ".cc", ".proto", ".py", ".sh", ".cmake", ".txt", ".pml"}
# Pages that must name the old words, and this test.
EXEMPT = {"docs/words.md", "docs/upgrading.md", "tests/tools/words_test.py"}
# Rows with a remark whose word has a right use too, in the project or in plain English.
OTHER_MEANINGS = {"chain", "end", "has ended", "leader", "life", "line", "lives", "near", "patience", "place", "quiet",
                  "share", "stage", "trail", "trust", "world"}
SKIPPED = {"build", ".deps", ".git", "third_party", "corpus", "scenarios"}


def rows(page):
    """(word, remark or None) of each row of the table."""
    table = page.partition("## Words that we do not use")[2]
    found = re.findall(r"^\| ([\w ]+?)(?: \(([^|)]*)\))? \|", table, re.M)
    return [(split(word), remark.lower() or None) for word, remark in found if word != "old"]


def banned(page):
    """Returns regular expressions."""
    found = []
    for word, remark in rows(page):
        if remark is None or word not in OTHER_MEANINGS:
            found.append(word + "s?")
        elif remark.startswith("of "):
            for noun in re.sub(r"\b(of|an?|the) ", "", remark).split(", "):
                found.append(f"{noun} {word}" if word.startswith("has ") else rf"{word}s? of (?:(?:an?|the) )?{noun}")
    return found


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
    pattern = re.compile(r"\b(" + "|".join(words) + r")\b")
    return [(number, match[1]) for number, line in enumerate(text.splitlines(), 1)
            for match in pattern.finditer(split(line))]


PAGE = (ROOT / "docs/words.md").read_text()


class WordsTest(unittest.TestCase):
    def test_the_table_is_read(self):
        self.assertIn("verdicts?", banned(PAGE))
        self.assertIn("newcomers?", banned(PAGE))
        self.assertGreater(len(banned(PAGE)), 25)
        self.assertEqual(OTHER_MEANINGS - {word for word, remark in rows(PAGE) if remark}, set())

    def test_a_planted_word_is_found(self):
        self.assertEqual(uses("// fine\nint newcomer_count;\nclass VerdictList;\n", ["newcomer", "verdict"]),
                         [(2, "newcomer"), (3, "verdict")])

    def test_a_planted_word_with_a_remark_is_found(self):
        text = "kLanes\nThe board.\nlearn_company()\nA chain of calls.\nThe connection has ended.\nlife of the worker\n"
        self.assertEqual(uses(text, banned(PAGE)),
                         [(1, "lanes"), (2, "board"), (3, "learn company"), (4, "chain of calls"),
                          (5, "connection has ended"), (6, "life of the worker")])

    def test_another_meaning_of_a_word_is_not_refused(self):
        text = "The pass has ended.\nAn error trail.\nThe life of a call.\nworld_size\n"
        self.assertEqual(uses(text, banned(PAGE)), [])

    def test_no_file_uses_a_banned_word(self):
        words = banned(PAGE)
        found = [f"{path.relative_to(ROOT)}:{number}: '{word}'" for path in files()
                 for number, word in uses(path.read_text(errors="replace"), words)]
        self.assertEqual(found, [], "docs/words.md says what to write instead\n" + "\n".join(found[:50]))


if __name__ == "__main__":
    unittest.main()
