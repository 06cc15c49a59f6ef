// Checks docs/errors.md against the program: each row of its table is made to happen.
#include <fstream>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/tests/worker/errors/error_situations.h"

namespace errors_test {
namespace {

struct Row {
  std::string what, code, ran;
  friend void PrintTo(const Row& row, std::ostream* out) { *out << row.what; }
};

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::stringstream in(line.substr(1));
  for (std::string cell; std::getline(in, cell, '|');) {
    const size_t from = cell.find_first_not_of(' '), to = cell.find_last_not_of(' ');
    cells.push_back(from == std::string::npos ? "" : cell.substr(from, to + 1 - from));
  }
  return cells;
}

std::vector<Row> rows() {
  std::ifstream page(WEFT_SOURCE_DIR "/docs/errors.md");
  std::vector<Row> rows;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("|---", 0) == 0) {
      inside = true;
    } else if (line.empty() || line[0] != '|') {
      inside = false;
    } else if (inside) {
      const std::vector<std::string> cells = cells_of(line);
      EXPECT_EQ(cells.size(), 3u) << line;
      if (cells.size() == 3) rows.push_back({cells[0], cells[1], cells[2]});
    }
  }
  return rows;
}

// The code with which a cell begins, in absl's spelling without underscores: "NotFound".
std::optional<absl::StatusCode> code_of(const std::string& cell) {
  std::string word = cell.substr(
      0, cell.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"));
  for (int code = 1; code <= 16; ++code) {
    std::string name;
    for (const char c : absl::StatusCodeToString(static_cast<absl::StatusCode>(code))) {
      if (c != '_') name += c;
    }
    for (char& c : word) c = static_cast<char>(std::toupper(c));
    if (name == word) return static_cast<absl::StatusCode>(code);
  }
  return std::nullopt;
}

std::string word_for(weft::Ran ran) {
  return ran == weft::Ran::kNo ? "no" : ran == weft::Ran::kYes ? "yes" : "maybe";
}

class ErrorsTest : public ::testing::TestWithParam<Row> {};

TEST_P(ErrorsTest, TheRowIsWhatHappens) {
  const Row& row = GetParam();
  const auto found = situations().find(row.what);
  ASSERT_NE(found, situations().end())
      << "docs/errors.md has a row that no situation shows: '" << row.what << "'";
  const std::optional<absl::StatusCode> written = code_of(row.code);
  const std::optional<absl::StatusCode> code = written ? written : found->second.code;
  ASSERT_TRUE(code.has_value()) << "'" << row.code << "' begins with no status code";
  const std::vector<absl::Status> statuses = found->second.run();
  ASSERT_FALSE(statuses.empty());
  for (size_t i = 0; i < statuses.size(); ++i) {
    EXPECT_EQ(statuses[i].code(), *code) << "case " << i << ": " << statuses[i];
    EXPECT_EQ(word_for(weft::ran_of(statuses[i])), row.ran) << "case " << i << ": " << statuses[i];
    EXPECT_THAT(absl::StrCat(statuses[i].message(), " ", weft::trail_of(statuses[i])),
                ::testing::HasSubstr(found->second.names))
        << "case " << i;
  }
}

std::string name_of(const ::testing::TestParamInfo<Row>& info) {
  std::string name;
  bool upper = true;
  for (const char c : info.param.what) {
    if (!std::isalnum(static_cast<unsigned char>(c))) {
      upper = c == ' ' || upper;
    } else {
      name += upper ? static_cast<char>(std::toupper(c)) : c;
      upper = false;
    }
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Table, ErrorsTest, ::testing::ValuesIn(rows()), name_of);

TEST(ErrorsPageTest, HasEachRowOnceAndNoSituationWithoutOne) {
  std::set<std::string> written;
  for (const Row& row : rows()) {
    EXPECT_TRUE(written.insert(row.what).second) << "twice: '" << row.what << "'";
    EXPECT_TRUE(situations().contains(row.what)) << "without a situation: '" << row.what << "'";
  }
  for (const auto& [what, situation] : situations()) {
    EXPECT_TRUE(written.contains(what)) << "not in docs/errors.md: '" << what << "'";
  }
}

}  // namespace
}  // namespace errors_test
