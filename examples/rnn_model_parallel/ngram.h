// What simple counts make of a text: the perplexities that a language model must improve on.
//
// A perplexity is e to the mean of -log p(token | the tokens before it) over all tokens but the
// first.
//
// Thread safety: pure functions.
// Errors: std::invalid_argument for texts of fewer than two tokens.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::examples {

// The probability of a token is its frequency in `train`, whatever came before. Tokens that are not
// in `train` count once.
double unigram_perplexity(const std::vector<int64_t>& train, const std::vector<int64_t>& test);

// Interpolated Kneser-Ney bigrams with one discount n1 / (n1 + 2 n2). See Chen and Goodman, "An
// Empirical Study of Smoothing Techniques for Language Modeling", 1998, section 2.7. Tokens without
// a predecessor in `train` share the mass that is left for them. `vocabulary` is the number of
// different tokens.
double kneser_ney_perplexity(const std::vector<int64_t>& train, const std::vector<int64_t>& test,
                             int64_t vocabulary);

}  // namespace weft::examples
