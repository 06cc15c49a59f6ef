#include "weft/examples/rnn_model_parallel/bible_text.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <sys/wait.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/status.h"

namespace weft::examples {
namespace {

constexpr const char* kCommand = "bible -f gen1:1-rev22:21 </dev/null 2>/dev/null";

absl::StatusOr<std::string> ask_bible() {
  std::string text;
  FILE* const pipe = ::popen(kCommand, "r");
  if (pipe == nullptr) return absl::ResourceExhaustedError("cannot start a shell to run 'bible'");
  char part[1 << 16];
  for (size_t size; (size = ::fread(part, 1, sizeof(part), pipe)) > 0;) text.append(part, size);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && !text.empty()) return text;
  return absl::NotFoundError(absl::StrCat(
      "cannot run 'bible': install Debian's packages bible-kjv and bible-kjv-text, or name a file "
      "with one verse in each line"));
}

absl::StatusOr<std::string> read_text(const std::string& file) {
  std::ifstream stream(file);
  std::string text;
  char part[1 << 16];
  while (stream.read(part, sizeof(part)) || stream.gcount() > 0) {
    text.append(part, static_cast<size_t>(stream.gcount()));
  }
  if (stream.eof()) return text;
  return absl::NotFoundError(
      absl::StrCat("cannot read ", file, ", which should have one verse in each line"));
}

// Removes the verse's reference: "Ge1:1 In the" becomes "In the".
std::string without_place(const std::string& line) {
  const size_t space = std::min(line.find(' '), line.size());
  const size_t colon = line.find(':');
  const bool has_place = colon != std::string::npos && colon > 0 && colon + 1 < space &&
                         absl::ascii_isdigit(line[colon - 1]) &&
                         absl::ascii_isdigit(line[colon + 1]);
  return has_place ? line.substr(space) : line;
}

std::vector<int64_t> numbers_of(const std::vector<std::vector<std::string>>& verses,
                                const std::map<std::string, int64_t>& numbers) {
  std::vector<int64_t> result{BibleText::kEnd};
  for (const auto& verse : verses) {
    for (const std::string& token : verse) {
      const auto known = numbers.find(token);
      result.push_back(known == numbers.end() ? BibleText::kUnknown : known->second);
    }
    result.push_back(BibleText::kEnd);
  }
  return result;
}

}  // namespace

std::vector<std::string> tokens_of(const std::string& verse) {
  std::vector<std::string> tokens;
  for (size_t i = 0; i < verse.size();) {
    const auto letter = [&](size_t at) {
      return at < verse.size() && absl::ascii_isalpha(verse[at]);
    };
    size_t end = i + 1;
    if (letter(i)) {
      // An apostrophe belongs to the word that it stands in.
      while (letter(end) || (end < verse.size() && verse[end] == '\'' && letter(end + 1))) ++end;
    }
    if (!absl::ascii_isspace(verse[i])) {
      tokens.push_back(absl::AsciiStrToLower(verse.substr(i, end - i)));
    }
    i = end;
  }
  return tokens;
}

absl::StatusOr<BibleText> load_bible_text(const std::string& file, int64_t limit) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, file.empty() ? ask_bible() : read_text(file));
  std::vector<std::vector<std::string>> train, held_out;
  std::map<std::string, int64_t> counts;
  BibleText result;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.empty() || (limit > 0 && result.verses == limit)) continue;
    auto tokens = tokens_of(without_place(std::string(line)));
    if (++result.verses % kHeldOutEvery == 0) {
      held_out.push_back(std::move(tokens));
      continue;
    }
    for (const std::string& token : tokens) ++counts[token];
    train.push_back(std::move(tokens));
  }
  if (held_out.empty() || counts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.empty() ? "what 'bible' printed" : file, " has ", result.verses,
                     " verses; a language model needs ", kHeldOutEvery,
                     " at least, one of them to be tested on"));
  }
  std::map<std::string, int64_t> numbers;
  result.vocabulary = {"<end>", "<unknown>"};
  for (const auto& [token, count] : counts) {
    if (count == 1) continue;
    numbers[token] = result.vocabulary_size();
    result.vocabulary.push_back(token);
  }
  result.train = numbers_of(train, numbers);
  result.held_out = numbers_of(held_out, numbers);
  return result;
}

}  // namespace weft::examples
