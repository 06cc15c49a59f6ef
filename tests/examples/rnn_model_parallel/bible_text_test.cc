// The King James text as tokens: words, held-out verses, unknown words, missing files.
#include "weft/examples/rnn_model_parallel/bible_text.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace weft::examples {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(BibleText, TokensAreLowerCaseWordsAndMarks) {
  EXPECT_THAT(tokens_of("And God said, Let there be light:"),
              ElementsAre("and", "god", "said", ",", "let", "there", "be", "light", ":"));
  EXPECT_THAT(tokens_of("the LORD's house; a' 'b (selah)"),
              ElementsAre("the", "lord's", "house", ";", "a", "'", "'", "b", "(", "selah", ")"));
  EXPECT_THAT(tokens_of("  "), IsEmpty());
  EXPECT_THAT(tokens_of("7 \xc3\xa9"), ElementsAre("7", "\xc3", "\xa9"));
}

// The whole text, from which the numbers in the README were taken.
TEST(BibleText, DebiansTextHasItsVersesAndKinds) {
  const auto text = load_bible_text();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->verses, 31'102);
  EXPECT_EQ(text->vocabulary_size(), 8'547);
  EXPECT_EQ(text->train.size(), 897'144u);
  EXPECT_EQ(text->held_out.size(), 47'668u);
  std::vector<std::string> begin;
  for (size_t i = 0; i < 6; ++i)
    begin.push_back(text->vocabulary[static_cast<size_t>(text->train[i])]);
  EXPECT_THAT(begin, ElementsAre("<end>", "in", "the", "beginning", "god", "created"));
}

class BibleFile : public ::testing::Test {
 protected:
  BibleFile() { std::filesystem::create_directories(folder_); }
  ~BibleFile() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& content) {
    std::ofstream(folder_ / "text") << content;
    return folder_ / "text";
  }
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / absl::StrCat("bible_text_test.", getpid());
};

TEST_F(BibleFile, EveryTwentiethVerseIsHeldOutAndRareWordsAreUnknown) {
  std::string content;
  for (int i = 1; i <= 40; ++i) {
    absl::StrAppend(&content, "Ge1:", i, i % 20 == 0 ? " the held word" : " the word", "\n");
  }
  content += "\nGe2:1 once\n";
  const auto text = load_bible_text(write(content));
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(text->vocabulary, ElementsAre("<end>", "<unknown>", "the", "word"));
  EXPECT_EQ(text->verses, 41);
  EXPECT_THAT(text->held_out, ElementsAre(0, 2, 1, 3, 0, 2, 1, 3, 0));
  EXPECT_EQ(text->train.size(), 1 + 38 * 3 + 2u);
  EXPECT_EQ(text->train[text->train.size() - 2], BibleText::kUnknown);
  EXPECT_EQ(load_bible_text(write(content), 20)->verses, 20);
  // Without verse references, no word is mistaken for one.
  std::string bare;
  for (int i = 0; i < 20; ++i) bare += "now: then\n";
  EXPECT_THAT(load_bible_text(write(bare))->held_out, ElementsAre(0, 3, 2, 4, 0));
}

TEST_F(BibleFile, WhatIsMissingIsNamed) {
  const auto missing = load_bible_text("/nowhere/text");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("/nowhere/text"));
  EXPECT_THAT(load_bible_text(write("Ge1:1 In the beginning\n")).status().message(),
              HasSubstr("has 1 verses"));
  EXPECT_EQ(load_bible_text(write("")).status().code(), absl::StatusCode::kInvalidArgument);

  const std::string path = std::getenv("PATH");
  ::setenv("PATH", "/nowhere", 1);
  const auto no_package = load_bible_text();
  ::setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(no_package.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(no_package.status().message(), HasSubstr("bible-kjv and bible-kjv-text"));
}

}  // namespace
}  // namespace weft::examples
