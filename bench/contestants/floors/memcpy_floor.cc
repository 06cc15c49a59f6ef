#include <cstring>
#include <vector>

#include "weft/base/status.h"
#include "weft/bench/contestants/floors/floors.h"
#include "weft/bench/contestants/floors/stamps.h"

namespace weft::bench {
namespace {

class IdleServer final : public Server {
 public:
  absl::StatusOr<std::string> listen() override { return "nowhere"; }
  absl::Status serve() override { return absl::OkStatus(); }
};

class MemcpyClient final : public Client {
 public:
  absl::Status connect(const std::string& /*address*/) override { return absl::OkStatus(); }

  absl::Status send(int64_t bytes) override {
    resize(bytes);
    stamps_.write(argument_);
    copy(argument_, arrived_);
    return stamps_.check(arrived_, Stamps::stride_of(arrived_));
  }

  absl::Status echo(int64_t bytes) override {
    resize(bytes);
    if (returned_.size() != argument_.size()) returned_.assign(argument_.size(), 0);
    stamps_.write(argument_);
    copy(argument_, arrived_);
    copy(arrived_, returned_);
    return stamps_.check(returned_, Stamps::stride_of(returned_));
  }

 private:
  // Writes each page once, in a call that is not timed: every block warms up.
  void resize(int64_t bytes) {
    const size_t elements = static_cast<size_t>(bytes) / sizeof(float);
    if (argument_.size() == elements) return;
    argument_.assign(elements, 0);
    arrived_.assign(elements, 0);
    returned_.clear();
  }

  static void copy(const std::vector<float>& from, std::vector<float>& to) {
    std::memcpy(to.data(), from.data(), from.size() * sizeof(float));
  }

  std::vector<float> argument_;
  std::vector<float> arrived_;
  std::vector<float> returned_;  // of echo
  Stamps stamps_;
};

}  // namespace

Contestant memcpy_floor() {
  return {.name = "memcpy",
          .make_server = [] { return std::make_unique<IdleServer>(); },
          .make_client = [] { return std::make_unique<MemcpyClient>(); }};
}

}  // namespace weft::bench
