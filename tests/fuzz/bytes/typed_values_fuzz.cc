// Typed arguments and results. The first byte chooses a type, and the rest is decoded as one. An
// accepted value must be encoded again and then decoded without a change. The messages of an
// optimizer's step are among the types.
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

#include "weft/dist_optim/steps/step_core.h"
#include "weft/rpc/codec/codec.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

enum class Colour : uint8_t { kRed, kGreen };

// The type nests without limit. Its messages are finite.
struct Tree {
  std::string name;
  std::vector<Tree> branches;
};
auto weft_fields(Tree& tree) { return std::tie(tree.name, tree.branches); }

struct Everything {
  int8_t small = 0;
  bool flag = false;
  double number = 0;
  Colour colour = Colour::kRed;
  std::chrono::milliseconds pause{0};
  std::array<int16_t, 3> three{};
  std::pair<uint32_t, std::string> pair;
  std::variant<std::monostate, int64_t, std::vector<std::string>> one_of;
};
auto weft_fields(Everything& e) {
  return std::tie(e.small, e.flag, e.number, e.colour, e.pause, e.three, e.pair, e.one_of);
}
struct Nothing {};
auto weft_fields(Nothing&) { return std::tie(); }

template <class T>
std::string written(const T& value) {
  Writer writer;
  Codec<T>::encode(writer, value);
  require(writer.status().ok(), "a value cannot be written");
  return std::move(writer.body());
}

template <class T>
bool equal(const T& a, const T& b) {
  return written(a) == written(b);  // compares NaNs too
}
// The order of the encoded entries depends on the history of the table, so compare the tables.
template <class K, class V>
bool equal(const std::unordered_map<K, V>& a, const std::unordered_map<K, V>& b) {
  return a == b;
}

template <class T>
void check(std::string_view bytes) {
  Reader reader(std::string(bytes), {}, {});
  const T value = Codec<T>::decode(reader);
  if (const absl::Status status = reader.finish(); !status.ok()) {
    require_refusal(status);
    return;
  }
  const std::string first = written(value);
  require(first.size() == bytes.size() || bytes.empty(), "a value of another size");
  Reader again(first, {}, {});
  const T same = Codec<T>::decode(again);
  require(again.finish().ok(), "what was written is refused");
  require(equal(same, value), "a value changes");
}

using Check = void (*)(std::string_view);
constexpr Check kChecks[] = {
    check<std::vector<double>>,
    check<std::vector<std::string>>,
    check<std::vector<bool>>,
    check<std::map<std::string, std::vector<int32_t>>>,
    check<std::unordered_map<int64_t, std::string>>,
    check<std::set<std::string>>,
    check<std::tuple<int, std::optional<std::string>, std::vector<std::optional<float>>>>,
    check<std::vector<Nothing>>,
    check<std::vector<std::vector<std::vector<std::monostate>>>>,
    check<std::vector<std::array<std::string, 4>>>,
    check<Everything>,
    check<std::vector<Everything>>,
    check<Tree>,
    check<dist_optim_internal::StepId>,
    check<dist_optim_internal::StepUpdate>,
    check<dist_optim_internal::StepDecision>,
    check<dist_optim_internal::SequenceStanding>,
    check<dist_optim_internal::StepDurable>,
    check<dist_optim_internal::StepSummary>,
};

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::fuzz;
  Bytes input(data, size);
  kChecks[input.below(std::size(kChecks))](input.rest());
  return 0;
}
