#include "weft/examples/rnn_model_parallel/ngram.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <utility>

namespace weft::examples {
namespace {

using Bigram = std::pair<int64_t, int64_t>;

void require_bigrams(const std::vector<int64_t>& train, const std::vector<int64_t>& test) {
  if (train.size() < 2 || test.size() < 2) {
    throw std::invalid_argument("a perplexity needs texts of two tokens or more");
  }
}

template <class Key>
double count_of(const std::map<Key, int64_t>& counts, const Key& key) {
  const auto found = counts.find(key);
  return found == counts.end() ? 0 : static_cast<double>(found->second);
}

template <class Probability>
double perplexity(const std::vector<int64_t>& test, const Probability& probability) {
  double sum = 0;
  for (size_t i = 1; i < test.size(); ++i) sum -= std::log(probability(test[i - 1], test[i]));
  return std::exp(sum / static_cast<double>(test.size() - 1));
}

}  // namespace

double unigram_perplexity(const std::vector<int64_t>& train, const std::vector<int64_t>& test) {
  require_bigrams(train, test);
  std::map<int64_t, int64_t> counts;
  for (size_t i = 1; i < train.size(); ++i) ++counts[train[i]];
  const auto total = static_cast<double>(train.size() - 1);
  return perplexity(
      test, [&](int64_t, int64_t token) { return std::max(1.0, count_of(counts, token)) / total; });
}

double kneser_ney_perplexity(const std::vector<int64_t>& train, const std::vector<int64_t>& test,
                             int64_t vocabulary) {
  require_bigrams(train, test);
  std::map<Bigram, int64_t> bigrams;
  std::map<int64_t, int64_t> before;        // how often any token followed it
  std::map<int64_t, int64_t> followers;     // how many different tokens followed it
  std::map<int64_t, int64_t> predecessors;  // how many different tokens came before it
  for (size_t i = 1; i < train.size(); ++i) {
    ++before[train[i - 1]];
    if (++bigrams[{train[i - 1], train[i]}] > 1) continue;
    ++followers[train[i - 1]];
    ++predecessors[train[i]];
  }
  double once = 0, twice = 0;
  for (const auto& [bigram, count] : bigrams) {
    once += count == 1;
    twice += count == 2;
  }
  const double discount = once == 0 ? 0.5 : once / (once + 2 * twice);
  const auto types = static_cast<double>(bigrams.size());
  // Of tokens that nothing came before there are `unseen`; together they get the mass of one
  // type.
  const double unknown =
      std::max(1.0, static_cast<double>(vocabulary) - static_cast<double>(predecessors.size()));
  const bool all_known = static_cast<int64_t>(predecessors.size()) >= vocabulary;
  const double all_types = all_known ? types : types + 1;
  const auto continuation = [&](int64_t token) {
    const double count = count_of(predecessors, token);
    return (count > 0 ? count : 1 / unknown) / all_types;
  };
  return perplexity(test, [&](int64_t previous, int64_t token) {
    const double seen = count_of(before, previous);
    if (seen == 0) return continuation(token);
    const double own = std::max(0.0, count_of(bigrams, {previous, token}) - discount);
    return (own + discount * count_of(followers, previous) * continuation(token)) / seen;
  });
}

}  // namespace weft::examples
