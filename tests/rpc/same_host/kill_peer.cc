// A worker that a test kills: kill_peer ADDRESS WORKER. It dials the worker, sends a small frame
// and a large one, says so, and waits for its death.
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <unistd.h>
#include <utility>
#include <vector>

#include "weft/async/future.h"
#include "weft/rpc/same_host/same_host_transport.h"

namespace weft {
namespace {

class Ignores final : public TransportSink {
 public:
  absl::Status on_accept(const PeerIdentity&) override { return absl::OkStatus(); }
  void on_open(const ConnectionPtr&) override {}
  void on_frames(const ConnectionPtr&, std::vector<Frame>) override {}
  void on_closed(const ConnectionPtr&, absl::Status) override {}
};

FramePtr frame_of(uint64_t number, size_t bytes) {
  Frame frame;
  frame.header.kind = FrameKind::kCall;
  frame.header.sequence = number;
  const auto owner = std::make_shared<std::vector<std::byte>>(bytes);
  frame.payloads = {{owner->data(), bytes, owner}};
  return std::make_shared<const Frame>(std::move(frame));
}

int run(const char* address, uint64_t worker) {
  SystemClock clock;
  Ignores sink;
  // Without blocks to lend, the large frame goes through the ring in pieces.
  SameHostTransport transport(clock, {.arena_bytes = 0});
  if (!transport.start({"group", "killed", {50, 1}}, &sink).ok()) return 1;
  Promise<ConnectionPtr> promise;
  Future<ConnectionPtr> future = promise.future();
  transport.connect(address, {"group", "far", WorkerId::from_bits(worker)}, kNever,
                    [promise = std::move(promise)](absl::StatusOr<ConnectionPtr> result) {
                      promise.set(std::move(result));
                    });
  const absl::StatusOr<ConnectionPtr> connection = future.result();
  if (!connection.ok()) {
    std::cerr << connection.status() << "\n";
    return 1;
  }
  (*connection)->send(frame_of(1, 10));
  (*connection)->send(frame_of(2, size_t{8} << 20));
  std::cout << "sent" << std::endl;
  while (true) ::pause();
}

}  // namespace
}  // namespace weft

int main(int count, char** arguments) {
  if (count != 3) return 2;
  return weft::run(arguments[1], std::strtoull(arguments[2], nullptr, 10));
}
