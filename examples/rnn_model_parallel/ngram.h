// What simple counts make of a text: the perplexities that a language model must improve on.
//
// A perplexity is e to the mean of -log p(token | what came before) over all tokens but the first.
//
// Thread safety: pure functions. Errors: std::invalid_argument for texts of fewer than two tokens.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::examples {

// Each token as often as it was in `train`, whatever came before; tokens that were not
// there count once.
double unigram_perplexity(const std::vector<int64_t>& train, const std::vector<int64_t>& test);

// Bigrams after Kneser and Ney, interpolated, one discount n1 / (n1 + 2 n2) (Chen and Goodman, "An
// Empirical Study of Smoothing Techniques for Language Modeling", 1998, section 2.7). What it
// leaves for tokens without predecessor in `train` is shared among them; `vocabulary` is how many
// tokens there are.
double kneser_ney_perplexity(const std::vector<int64_t>& train, const std::vector<int64_t>& test,
                             int64_t vocabulary);

}  // namespace weft::examples
