// Loads the King James text as numbers that a language model learns from and is tested on.
//
// The text comes from Debian's packages `bible-kjv` (the program `bible`) and `bible-kjv-text`. A
// file with one verse in each line, after its reference ("Ge1:1 In the beginning ..."), works too.
// Tokens are words in lower case, each punctuation mark, and the end of a verse. Every 20th verse
// is held out for the test. A word that occurs at most once in the other verses becomes the token
// kUnknown.
//
// Thread safety: plain values and functions.
// Blocking: file I/O.
// Errors: NotFound (names the file or the packages), InvalidArgument (a text without words).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace weft::examples {

inline constexpr int64_t kHeldOutEvery = 20;

struct BibleText {
  static constexpr int64_t kEnd = 0;      // the end of a verse, also before the first one
  static constexpr int64_t kUnknown = 1;  // a word

  std::vector<int64_t> train;           // begins and ends with kEnd
  std::vector<int64_t> held_out;        // the same
  std::vector<std::string> vocabulary;  // the text of each number
  int64_t verses = 0;

  int64_t vocabulary_size() const { return static_cast<int64_t>(vocabulary.size()); }
};

// Loads the first `limit` verses, 0: all. If `file` is empty, the text is that of Debian's package.
absl::StatusOr<BibleText> load_bible_text(const std::string& file = "", int64_t limit = 0);

// "And God said, Let" gives {"and", "god", "said", ",", "let"}.
std::vector<std::string> tokens_of(const std::string& verse);

}  // namespace weft::examples
