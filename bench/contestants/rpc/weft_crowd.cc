#include "weft/bench/contestants/rpc/weft_crowd.h"

#include <utility>

namespace weft::bench {
namespace {

class ServingMember final : public Member {
 public:
  explicit ServingMember(OptionsOfRank options) : options_(std::move(options)) {}
  absl::Status join(const std::string& address, int member, int members) override {
    return member_.join(address, member + 1, members + 1, options_(member + 1));
  }
  void close() override { member_.leave({.graceful = false}); }

 private:
  const OptionsOfRank options_;
  WeftMember member_;
};

}  // namespace

absl::StatusOr<std::string> CrowdDoor::listen() { return member_.listen(); }

absl::Status CrowdDoor::join(int members) {
  return member_.join(/*address=*/"", /*rank=*/0, members + 1, options_(0));
}

void CrowdDoor::close() { member_.leave({.graceful = false}); }

std::unique_ptr<Member> serving_member(OptionsOfRank options) {
  return std::make_unique<ServingMember>(std::move(options));
}

}  // namespace weft::bench
