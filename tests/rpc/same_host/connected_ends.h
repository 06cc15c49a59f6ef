// A fixture with both ends of a connection in one process and without a transport: the test visits
// the ends, and plays the watcher.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "weft/base/clock.h"
#include "weft/rpc/same_host/connection/same_host_connection.h"

namespace weft::testing {

class ConnectedEnds : public ::testing::Test {
 protected:
  static constexpr size_t kRing = 4096;
  static constexpr uint64_t kArena = uint64_t{4} << 20;
  static constexpr WorkerId kNear{1, 1};
  static constexpr WorkerId kFar{2, 1};

  ConnectedEnds() {
    const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    LocalListener listener = LocalListener::create().value();
    LocalSocket far = LocalSocket::connect(listener.name(), soon).value();
    LocalSocket near = listener.accept(soon).value();
    auto memory = shared(rpc_internal::PairMemory::create(kRing).value());
    auto same = shared(mapped_again(*memory));
    hostile_ = mapped_again(*memory);
    near_ = make(std::move(memory), rpc_internal::PairMemory::kAcceptor, std::move(near));
    far_ = make(std::move(same), rpc_internal::PairMemory::kDialler, std::move(far));
  }
  ~ConnectedEnds() override {
    for (const auto& arena : arenas_) arena->remove_all_sources();
  }

  std::optional<absl::Status> visit(rpc_internal::SameHostConnection& connection) {
    return connection.visit([this](std::vector<Frame> frames) {
      for (Frame& frame : frames) frames_.push_back(std::move(frame));
    });
  }

  rpc_internal::BufferPool pool_;
  ManualClock clock_;
  const std::shared_ptr<rpc_internal::WakePage> pages_[2] = {
      rpc_internal::WakePage::create().value(), rpc_internal::WakePage::create().value()};
  // Of the near end and of the far one. Shared with the connections.
  const std::shared_ptr<BlockArena> arenas_[2] = {
      std::make_shared<BlockArena>(BlockArena::Options{.cap = kArena}),
      std::make_shared<BlockArena>(BlockArena::Options{.cap = kArena})};
  // The blocks that the ends have borrowed. Shared with the connections.
  const std::shared_ptr<BorrowedSegments> borrowed_[2] = {
      std::make_shared<BorrowedSegments>(BorrowedSegments::Limits{}),
      std::make_shared<BorrowedSegments>(BorrowedSegments::Limits{})};
  std::optional<rpc_internal::PairMemory> hostile_;  // what a peer may write
  std::shared_ptr<rpc_internal::SameHostConnection> near_, far_;
  std::vector<Frame> frames_;

 private:
  static std::shared_ptr<rpc_internal::PairMemory> shared(rpc_internal::PairMemory memory) {
    return std::make_shared<rpc_internal::PairMemory>(std::move(memory));
  }
  static rpc_internal::PairMemory mapped_again(const rpc_internal::PairMemory& memory) {
    return rpc_internal::PairMemory::adopt(FileDescriptor(::dup(memory.descriptor())), kRing)
        .value();
  }
  std::shared_ptr<rpc_internal::SameHostConnection> make(
      std::shared_ptr<rpc_internal::PairMemory> memory, rpc_internal::PairMemory::End end,
      LocalSocket socket) {
    using rpc_internal::PairMemory;
    const bool is_near = end == PairMemory::kAcceptor;
    const size_t side = is_near ? 0 : 1;
    const rpc_internal::WakeSlot here = {pages_[side], 5}, there = {pages_[1 - side], 6};
    const PeerIdentity peer = {"group", "peer", is_near ? kFar : kNear};
    auto lender =
        std::make_shared<rpc_internal::PayloadLender>(arenas_[side], peer.id, memory, end, here);
    lender->begin();
    auto borrower = std::make_unique<rpc_internal::PayloadBorrower>(
        borrowed_[side], memory, is_near ? PairMemory::kDialler : PairMemory::kAcceptor, there,
        pool_, clock_);
    rpc_internal::SameHostConnection::Parts parts = {
        std::move(memory),  end, std::move(socket), here, there, peer, std::move(lender),
        std::move(borrower)};
    return std::make_shared<rpc_internal::SameHostConnection>(std::move(parts), pool_,
                                                              TransportLimits{});
  }
};

}  // namespace weft::testing
