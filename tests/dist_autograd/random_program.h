// Random programs over several workers, and what they compute in one process.
//
// All of a program follows from its seed, and the parameter of each worker from its name, so any
// process can compute the gradients that it must have.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::testing {

// How many of what the programs contain, as far as their losses reach.
struct Ingredients {
  int64_t programs = 0;
  int64_t calls = 0;
  int64_t unused = 0;
  int64_t failed = 0;
  int64_t cancelled = 0;
  int64_t to_itself = 0;
  int64_t diamonds = 0;    // two calls to other workers that a third one joins
  int64_t references = 0;  // arguments that are RRefs
  int64_t deepest = 0;     // calls within calls

  Ingredients& operator+=(const Ingredients& other);
  std::string to_string() const;
  // What to_string wrote, anywhere in `text`, summed up.
  static Ingredients parse(const std::string& text);
  // Empty, or what there is too little of.
  std::string missing() const;
};

// Runs the program of `seed` from this thread's worker, in a context of its own, against the
// workers `names`. Returns what is wrong with its gradients, or nothing.
std::string check_program(const std::vector<std::string>& names, uint64_t seed,
                          Ingredients& contents);

// From the environment: WEFT_TEST_SEED, WEFT_TEST_RUNS.
uint64_t number_from_environment(const char* variable, uint64_t fallback);

}  // namespace weft::testing
