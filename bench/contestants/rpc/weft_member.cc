#include "weft/bench/contestants/rpc/weft_member.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"
#include "weft/base/status.h"
#include "weft/store/rendezvous.h"

namespace weft::bench {

absl::StatusOr<std::string> WeftMember::listen() {
  auto hosted = host_rendezvous_store({.port = 0});
  if (!hosted.ok()) return hosted.status();
  store_ = std::move(hosted->store);
  return absl::StrCat(hosted->port);
}

absl::Status WeftMember::join(const std::string& address, int rank, int workers,
                              WorkerOptions options) {
  if (store_ == nullptr) {
    int port = 0;
    if (!absl::SimpleAtoi(address, &port)) return absl::InvalidArgumentError("no port: " + address);
    WEFT_ASSIGN_OR_RETURN(store_, connect_rendezvous_store({.port = static_cast<uint16_t>(port)}));
  }
  options.place.rank = static_cast<uint32_t>(rank);
  options.place.world_size = static_cast<uint32_t>(workers);
  options.place.master_addr = "127.0.0.1";
  options.store = store_;
  return guarded([&] {
    worker_ = Worker::join(std::move(options));
    return absl::OkStatus();
  });
}

void WeftMember::leave(ShutdownOptions options) {
  if (worker_) worker_->shutdown(options);
}

absl::Status guarded(const std::function<absl::Status()>& operation) {
  try {
    return operation();
  } catch (const RpcError& error) {
    return error.status();
  }
}

}  // namespace weft::bench
