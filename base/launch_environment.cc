#include "weft/base/launch_environment.h"

#include <cstdlib>
#include <limits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {
namespace {

constexpr uint32_t kMaxNumber = std::numeric_limits<int32_t>::max();

// Reads variables one by one and gathers a text for each problem, so that one error names them all.
class Reader {
 public:
  explicit Reader(const EnvironmentReader& read) : read_(read) {}

  // An empty variable counts as unset, as in a shell's ${NAME:-default}.
  std::optional<std::string> text(const char* name) {
    std::optional<std::string> value = read_(name);
    if (value && value->empty()) value.reset();
    return value;
  }

  std::string required_text(const char* name) {
    std::optional<std::string> value = text(name);
    if (!value) problems_.push_back(absl::StrCat(name, " is not set"));
    return value.value_or("");
  }

  uint32_t number(const char* name, uint32_t low, uint32_t high, uint32_t fallback) {
    const std::optional<std::string> value = text(name);
    return value ? parse(name, *value, low, high) : fallback;
  }

  uint32_t required_number(const char* name, uint32_t low, uint32_t high) {
    const std::optional<std::string> value = text(name);
    if (value) return parse(name, *value, low, high);
    problems_.push_back(absl::StrCat(name, " is not set"));
    return low;
  }

  bool flag(const char* name) {
    const std::optional<std::string> value = text(name);
    if (!value) return false;
    const std::string lower = absl::AsciiStrToLower(*value);
    if (lower == "true" || lower == "1") return true;
    if (lower != "false" && lower != "0") {
      problems_.push_back(absl::StrCat(name, "='", *value, "' is neither True nor False"));
    }
    return false;
  }

  void require(bool good, const std::string& problem) {
    if (good) return;
    problems_.push_back(problem);
  }

  const std::vector<std::string>& problems() const { return problems_; }

 private:
  uint32_t parse(const char* name, const std::string& value, uint32_t low, uint32_t high) {
    uint32_t number = 0;
    if (absl::SimpleAtoi(value, &number) && number >= low && number <= high) return number;
    problems_.push_back(
        absl::StrCat(name, "='", value, "' is not a number from ", low, " to ", high));
    return low;
  }

  const EnvironmentReader& read_;
  std::vector<std::string> problems_;
};

}  // namespace

std::optional<std::string> read_process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

absl::StatusOr<LaunchEnvironment> read_launch_environment(const EnvironmentReader& read) {
  Reader reader(read);
  LaunchEnvironment result;
  result.rank = reader.required_number("RANK", 0, kMaxNumber);
  result.world_size = reader.required_number("WORLD_SIZE", 1, kMaxNumber);
  result.master_addr = reader.required_text("MASTER_ADDR");
  result.master_port = static_cast<uint16_t>(reader.required_number("MASTER_PORT", 1, 65535));
  const bool place_is_known = reader.problems().empty();

  result.local_rank = reader.number("LOCAL_RANK", 0, kMaxNumber, result.rank);
  result.local_world_size = reader.number("LOCAL_WORLD_SIZE", 1, kMaxNumber, result.world_size);
  result.run_id = reader.text("TORCHELASTIC_RUN_ID").value_or("weft");
  result.restart_count = reader.number("TORCHELASTIC_RESTART_COUNT", 0, kMaxNumber, 0);
  result.group_epoch = reader.number("WEFT_GROUP_EPOCH", 0, kMaxNumber, result.restart_count);
  result.agent_hosts_store = reader.flag("TORCHELASTIC_USE_AGENT_STORE");
  result.role_name = reader.text("ROLE_NAME").value_or("");

  if (place_is_known) {
    reader.require(
        result.rank < result.world_size,
        absl::StrCat("RANK=", result.rank, " is not below WORLD_SIZE=", result.world_size));
    reader.require(result.local_rank < result.local_world_size,
                   absl::StrCat("LOCAL_RANK=", result.local_rank,
                                " is not below LOCAL_WORLD_SIZE=", result.local_world_size));
    reader.require(result.local_world_size <= result.world_size,
                   absl::StrCat("LOCAL_WORLD_SIZE=", result.local_world_size,
                                " is above WORLD_SIZE=", result.world_size));
  }
  if (reader.problems().empty()) return result;
  return absl::InvalidArgumentError(
      absl::StrCat("launch environment: ", absl::StrJoin(reader.problems(), "; "),
                   " (weft_launch and torchrun set these variables)"));
}

}  // namespace weft
