// The rendezvous store as a noticeboard of the ranks of one host.
//
// Thread safety: none. Blocking: read(), until its deadline.
// Errors: Unavailable with the store's words; DeadlineExceeded where no time was left to begin
// with.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/comm/internal/mesh.h"

namespace weft::internal {

class StoreNotices : public Noticeboard {
 public:
  using Milliseconds = std::chrono::milliseconds;

  // Stores add the time that they are given to their clocks, and hand it to system calls: a wait
  // that is longer than `slice` is done in slices.
  explicit StoreNotices(c10::intrusive_ptr<c10d::Store> store,
                        Milliseconds slice = std::chrono::minutes(10))
      : store_(std::move(store)), slice_(slice) {}

  absl::Status post(int rank, const std::string& text) override;
  absl::StatusOr<std::string> read(int rank, TimePoint deadline) override;

 private:
  static absl::Status guarded(const std::function<void()>& call);

  const c10::intrusive_ptr<c10d::Store> store_;
  const Milliseconds slice_;
};

}  // namespace weft::internal
