#include "weft/ddp/internal/verify_parameters.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"

namespace weft::ddp_internal {
namespace {

using Numbers = std::vector<int64_t>;
using Part = CopyDescription::Part;

constexpr int64_t kRefused = -1;
constexpr size_t kCounts = 3;  // of parameters (or kRefused), of others, of all numbers

int64_t words_for(int64_t characters) {
  return (characters + static_cast<int64_t>(sizeof(int64_t)) - 1) /
         static_cast<int64_t>(sizeof(int64_t));
}

// The numbers that must be equal: type, whether its gradient is sparse, dimensions, sizes, strides.
// The name follows, for errors: its length, and eight characters in each number.
Numbers numbers_of(const Part& part) {
  const at::Tensor& tensor = part.tensor;
  Numbers numbers = {static_cast<int64_t>(tensor.scalar_type()), part.sparse ? 1 : 0, tensor.dim()};
  numbers.insert(numbers.end(), tensor.sizes().begin(), tensor.sizes().end());
  numbers.insert(numbers.end(), tensor.strides().begin(), tensor.strides().end());
  numbers.push_back(static_cast<int64_t>(part.name.size()));
  const size_t place = numbers.size();
  numbers.resize(place + static_cast<size_t>(words_for(numbers.back())));
  std::memcpy(numbers.data() + place, part.name.data(), part.name.size());
  return numbers;
}

// The parts of one kind on one rank, read from its numbers.
class Parts {
 public:
  Parts(const Numbers& all, size_t begin, int64_t count) : all_(all) {
    for (int64_t i = 0; i < count; ++i) {
      begins_.push_back(begin);
      begin += shape_at(begin);
      begin += 1 + static_cast<size_t>(words_for(all_[begin]));
    }
    end_ = begin;
  }

  size_t count() const { return begins_.size(); }
  size_t end() const { return end_; }
  bool equal(size_t index, const Parts& other) const {
    const size_t length = shape_at(begins_[index]);
    return other.shape_at(other.begins_[index]) == length &&
           std::equal(here(index), here(index) + static_cast<int64_t>(length), other.here(index));
  }
  std::string name(size_t index) const {
    const size_t place = begins_[index] + shape_at(begins_[index]);
    const auto* const characters = reinterpret_cast<const char*>(all_.data() + place + 1);
    return {characters, static_cast<size_t>(all_[place])};
  }
  std::string text(size_t index) const {
    if (index >= count()) return "nothing";
    const auto begin = here(index);
    const auto sizes = begin + 3, strides = sizes + begin[2];
    return c10::str(c10::toString(static_cast<at::ScalarType>(begin[0])),
                    c10::IntArrayRef(Numbers(sizes, strides)), " with strides ",
                    c10::IntArrayRef(Numbers(strides, strides + begin[2])),
                    begin[1] != 0 ? " and sparse gradients" : "");
  }

 private:
  Numbers::const_iterator here(size_t index) const {
    return all_.begin() + static_cast<int64_t>(begins_[index]);
  }
  size_t shape_at(size_t begin) const { return 3 + 2 * static_cast<size_t>(all_[begin + 2]); }

  const Numbers& all_;
  std::vector<size_t> begins_;
  size_t end_ = 0;
};

void compare(const std::string& kind, const Parts& first, const Parts& other, size_t rank) {
  const std::string counts = first.count() == other.count()
                                 ? ""
                                 : absl::StrCat("rank ", rank, " has ", other.count(), " ", kind,
                                                "s, rank 0 has ", first.count(), ": ");
  for (size_t i = 0; i < std::max(first.count(), other.count()); ++i) {
    if (i < first.count() && i < other.count() && first.equal(i, other)) continue;
    const std::string name = i < first.count() ? first.name(i) : other.name(i);
    throw_ddp_error(absl::StrCat(counts, kind, " '", name, "' differs: ", first.text(i),
                                 " on rank 0, ", other.text(i), " on rank ", rank));
  }
}

Numbers gathered(const at::Tensor& one) {
  const at::Tensor here = one.to(at::kCPU);
  return {here.data_ptr<int64_t>(), here.data_ptr<int64_t>() + here.numel()};
}

}  // namespace

void throw_ddp_error(const std::string& what) {
  C10_THROW_ERROR(ValueError, absl::StrCat(kErrorPrefix, what));
}

void verify_copies(ProcessGroup& group, const CopyDescription& mine, at::Device device) {
  const auto how = at::TensorOptions().dtype(at::kLong).device(device);
  Numbers numbers;
  if (mine.refusal.empty()) {
    for (const auto& [name, value] : mine.options) numbers.push_back(value);
    for (const auto* const parts : {&mine.parameters, &mine.others}) {
      for (const Part& one : *parts) {
        const Numbers described = numbers_of(one);
        numbers.insert(numbers.end(), described.begin(), described.end());
      }
    }
  } else {
    numbers.assign(mine.refusal.begin(), mine.refusal.end());
  }
  const Numbers counts = {
      mine.refusal.empty() ? static_cast<int64_t>(mine.parameters.size()) : kRefused,
      static_cast<int64_t>(mine.others.size()), static_cast<int64_t>(numbers.size())};
  std::vector<Numbers> all_counts, all;
  int64_t longest = 1;
  for (const at::Tensor& one : group.all_gather(at::tensor(counts, at::kLong).to(how))) {
    all_counts.push_back(gathered(one));
    longest = std::max(longest, all_counts.back()[kCounts - 1]);
  }
  at::Tensor padded = at::zeros({longest}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), padded.data_ptr<int64_t>());
  for (const at::Tensor& one : group.all_gather(padded.to(how))) all.push_back(gathered(one));

  // Every rank has all numbers, so every rank finds the same difference.
  if (!mine.refusal.empty()) return;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all_counts[rank][0] != kRefused) continue;
    const auto begin = all[rank].begin();
    throw_ddp_error(absl::StrCat("rank ", rank, " does not take part: ",
                                 std::string(begin, begin + all_counts[rank][kCounts - 1])));
  }
  for (size_t rank = 1; rank < all.size(); ++rank) {
    for (size_t i = 0; i < mine.options.size(); ++i) {
      if (all[0][i] == all[rank][i]) continue;
      throw_ddp_error(absl::StrCat("option ", mine.options[i].first, " of rank ", rank,
                                   " is not that of rank 0"));
    }
    const size_t begin = mine.options.size();
    const Parts first(all[0], begin, all_counts[0][0]);
    const Parts other(all[rank], begin, all_counts[rank][0]);
    compare("parameter", first, other, rank);
    compare("buffer", Parts(all[0], first.end(), all_counts[0][1]),
            Parts(all[rank], other.end(), all_counts[rank][1]), rank);
  }
}

}  // namespace weft::ddp_internal
