// The rendezvous store as a noticeboard of the ranks of one host.
//
// Thread safety: none. Blocking: read(), until its deadline; post(), for the store's own timeout;
// two seconds more where the store does not answer. Lifetime: a call on a store that does not
// answer may outlive this, and keeps the store alive. Errors: Unavailable with the store's words;
// DeadlineExceeded where no time was left to begin with, or naming the store that does not answer:
// it is asked no more.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/comm/internal/group_store.h"
#include "weft/comm/same_host/mesh.h"

namespace weft::comm_internal {

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
  // `call` owns what it touches; `about`: whose notice, for the error.
  absl::Status guarded(int about, TimePoint deadline, std::function<void()> call);

  const c10::intrusive_ptr<c10d::Store> store_;
  const Milliseconds slice_;
  StoreCaller caller_;
};

}  // namespace weft::comm_internal
