// Perplexities of counts, compared with hand-made sums. The probabilities must sum to one.
#include "weft/examples/rnn_model_parallel/ngram.h"

#include <cmath>
#include <random>
#include <stdexcept>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/examples/rnn_model_parallel/bible_text.h"

namespace weft::examples {
namespace {

TEST(Ngram, UnigramsByHand) {
  // After the first token: 1 three times, 2 once.
  const std::vector<int64_t> train{0, 1, 1, 2, 1};
  EXPECT_NEAR(unigram_perplexity(train, {0, 1, 2}), std::sqrt(1 / (0.75 * 0.25)), 1e-12);
  EXPECT_NEAR(unigram_perplexity(train, {0, 7}), 4, 1e-12);  // counts as if it occurred once
}

TEST(Ngram, KneserNeyByHand) {
  // Bigrams: 01 twice, 12, 20, 10, 02 once each: n1 = 4, n2 = 1, discount 4 / 6.
  const std::vector<int64_t> train{0, 1, 2, 0, 1, 0, 2};
  const double discount = 4.0 / 6;
  // 1 follows 0 two times of three. 0 has two followers. One of five types ends in 1.
  const double p01 = (2 - discount + discount * 2 * (1.0 / 5)) / 3;
  EXPECT_NEAR(kneser_ney_perplexity(train, {0, 1}, 3), 1 / p01, 1e-12);
  // 11 was never seen: only the continuation is left.
  const double p11 = discount * 2 * (1.0 / 5) / 2;
  EXPECT_NEAR(kneser_ney_perplexity(train, {1, 1}, 3), 1 / p11, 1e-12);
}

TEST(Ngram, KneserNeysProbabilitiesSumToOne) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 50; ++round) {
    const int64_t kinds = 2 + random() % 8;
    std::vector<int64_t> train(2 + random() % 60);
    for (int64_t& token : train) token = static_cast<int64_t>(random() % kinds);
    for (int64_t previous = 0; previous < kinds; ++previous) {
      double sum = 0;
      for (int64_t next = 0; next < kinds; ++next) {
        sum += 1 / kneser_ney_perplexity(train, {previous, next}, kinds);
      }
      EXPECT_NEAR(sum, 1, 1e-9) << "after " << previous << " of " << kinds;
    }
  }
}

TEST(Ngram, ATextWithoutRareBigramsLeavesSomethingForNewOnes) {
  EXPECT_LT(kneser_ney_perplexity({0, 1, 0, 1, 0}, {1, 1}, 2), 100);
}

TEST(Ngram, OfTheKingJamesTextAreTheReadmesNumbers) {
  const auto text = load_bible_text();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_NEAR(unigram_perplexity(text->train, text->held_out), 286.4, 0.1);
  EXPECT_NEAR(kneser_ney_perplexity(text->train, text->held_out, text->vocabulary_size()), 62.7,
              0.1);
}

TEST(Ngram, TextsWithoutABigramAreRefused) {
  EXPECT_THROW(unigram_perplexity({0}, {0, 1}), std::invalid_argument);
  EXPECT_THROW(kneser_ney_perplexity({0, 1}, {}, 2), std::invalid_argument);
}

}  // namespace
}  // namespace weft::examples
