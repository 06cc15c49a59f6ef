// Runs random programs over several workers, and compares their gradients with those of one
// process.
//
// A program follows from its seed, and the parameter of each worker from its position in `names`.
// So any process can compute the expected gradients.
//
// Thread safety: free functions; any thread that has a worker's scope may call check_program().
// Blocking: check_program() waits for the calls and the pass of its program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::testing {

// Counts what the programs contain, as far as their losses reach.
struct Ingredients {
  int64_t programs = 0;
  int64_t calls = 0;
  int64_t unused = 0;
  int64_t failed = 0;
  int64_t cancelled = 0;
  int64_t to_itself = 0;
  int64_t diamonds = 0;    // two calls to other workers, joined by a third
  int64_t references = 0;  // arguments that are RRefs
  int64_t deepest = 0;     // the deepest nesting of calls

  Ingredients& operator+=(const Ingredients& other);
  std::string to_string() const;
  // Sums up all that to_string() wrote anywhere in `text`.
  static Ingredients parse(const std::string& text);
  // Returns what there is too little of, or "".
  std::string missing() const;
};

// Runs the program of `seed` in a context of its own, from this thread's worker, against the
// workers `names`. Returns what is wrong with its gradients, or "".
std::string check_program(const std::vector<std::string>& names, uint64_t seed,
                          Ingredients& contents);

// Reads an environment variable such as WEFT_TEST_SEED or WEFT_TEST_RUNS.
uint64_t number_from_environment(const char* variable, uint64_t fallback);

}  // namespace weft::testing
