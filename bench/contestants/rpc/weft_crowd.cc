#include "weft/bench/contestants/rpc/weft_crowd.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"
#include "weft/base/status.h"
#include "weft/worker/rendezvous.h"

namespace weft::bench {
namespace {

absl::StatusOr<Worker> join_group(std::shared_ptr<RendezvousStore> store, WorkerOptions options,
                                  int rank, int members) {
  options.place.rank = static_cast<uint32_t>(rank);
  options.place.world_size = static_cast<uint32_t>(members) + 1;
  options.place.master_addr = "127.0.0.1";
  options.store = std::move(store);
  try {
    return Worker::join(std::move(options));
  } catch (const RpcError& error) {
    return error.status();
  }
}

class ServingMember final : public Member {
 public:
  explicit ServingMember(OptionsOfRank options) : options_(std::move(options)) {}
  absl::Status join(const std::string& address, int member, int members) override {
    int port = 0;
    if (!absl::SimpleAtoi(address, &port)) return absl::InvalidArgumentError("no port: " + address);
    auto store = connect_rendezvous_store({.port = static_cast<uint16_t>(port)});
    if (!store.ok()) return store.status();
    WEFT_ASSIGN_OR_RETURN(Worker worker,
                          join_group(*std::move(store), options_(member + 1), member + 1, members));
    worker_.emplace(std::move(worker));
    return absl::OkStatus();
  }
  void close() override {
    if (worker_) worker_->shutdown(ShutdownOptions{.graceful = false});
  }

 private:
  const OptionsOfRank options_;
  std::optional<Worker> worker_;
};

}  // namespace

absl::StatusOr<std::string> CrowdDoor::listen() {
  auto hosted = host_rendezvous_store({.port = 0});
  if (!hosted.ok()) return hosted.status();
  store_ = std::move(hosted->store);
  return absl::StrCat(hosted->port);
}

absl::Status CrowdDoor::join(int members) {
  WEFT_ASSIGN_OR_RETURN(Worker worker, join_group(store_, options_(0), 0, members));
  worker_.emplace(std::move(worker));
  return absl::OkStatus();
}

void CrowdDoor::close() {
  if (worker_) worker_->shutdown(ShutdownOptions{.graceful = false});
}

std::unique_ptr<Member> serving_member(OptionsOfRank options) {
  return std::make_unique<ServingMember>(std::move(options));
}

}  // namespace weft::bench
