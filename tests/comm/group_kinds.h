// Makes process groups of every backend, for tests that run over all of them.
//
// Thread safety: free functions, and test fixtures as gtest uses them.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "weft/tests/comm/failure_of.h"
#include "weft/tests/support/group_world.h"

namespace weft::testing {

using Op = ProcessGroup::Op;
using Tensors = std::vector<at::Tensor>;
using Group = std::shared_ptr<ProcessGroup>;

struct GroupKind {
  std::string backend;
  std::string hosts;  // a letter for each rank's host; only "weft" uses it

  int size() const { return static_cast<int>(hosts.size()); }
  bool one_host() const { return hosts.find_first_not_of(hosts[0]) == std::string::npos; }
  // Whether Gloo carries collectives of this kind. Gloo cannot do all that the same-host backend
  // can.
  bool gloo() const { return backend == "gloo" || (backend == "weft" && !one_host()); }
  std::string name() const { return backend + "_" + hosts; }
};
inline void PrintTo(const GroupKind& kind, std::ostream* out) { *out << kind.name(); }

inline std::vector<GroupKind> all_kinds() {
  return {{"same_host", "a"}, {"same_host", "aa"}, {"same_host", "aaa"}, {"same_host", "aaaa"},
          {"gloo", "a"},      {"gloo", "aa"},      {"gloo", "aaa"},      {"gloo", "aaaa"},
          {"weft", "aaa"},    {"weft", "ab"},      {"weft", "aab"},      {"weft", "abb"},
          {"weft", "abab"},   {"weft", "abca"}};
}
inline std::string name_of(const ::testing::TestParamInfo<GroupKind>& info) {
  return info.param.name();
}

class GroupTest : public ::testing::TestWithParam<GroupKind> {
 protected:
  int size() const { return GetParam().size(); }
  void run(const std::function<void(Group)>& program) const {
    run_ranks(size(), program, [&](ProcessGroupOptions& options) {
      options.backend = GetParam().backend;
      options.host = GetParam().hosts.substr(static_cast<size_t>(options.rank), 1);
      options.timeout = std::chrono::seconds(30);
    });
  }
};

// A tensor with values 1, 2 and 3 (bool: true and false) that differs from rank to rank. Its sums
// are exact in all types.
inline at::Tensor values_of(int rank, at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  const at::Tensor base = at::arange(c10::multiply_integers(shape), at::kLong).reshape(shape);
  if (type == at::kBool) return (base * 7 + rank * 3) % 5 < 3;
  return ((base * 7 + rank * 3) % 3 + 1).to(type);
}

// Compares bytes, because numbers that compare equal may differ in their bytes.
inline bool same_bits(const at::Tensor& one, const at::Tensor& other) {
  if (one.sizes() != other.sizes() || one.scalar_type() != other.scalar_type()) return false;
  if (one.numel() == 0) return true;
  return at::equal(one.detach().contiguous().view({-1}).view(at::kByte),
                   other.detach().contiguous().view({-1}).view(at::kByte));
}

}  // namespace weft::testing
