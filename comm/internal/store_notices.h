// Keeps the notices of the ranks of one host in the rendezvous store.
//
// Thread safety: none.
// Blocking: read(), until its deadline; post(), for the store's own timeout. If the store does not
// answer, both take two seconds more.
// Lifetime: a call on a store that does not answer may outlive this object and keeps the store
// alive.
// Errors: Unavailable has the store's text. DeadlineExceeded: no time was left to begin with, or
// the store does not answer. In the second case the error names the store, which is then not asked
// again.
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

  // Stores add a wait's time to their clocks and hand it to system calls. So a wait that is longer
  // than `slice` is done in slices.
  explicit StoreNotices(c10::intrusive_ptr<c10d::Store> store,
                        Milliseconds slice = std::chrono::minutes(10))
      : store_(std::move(store)), slice_(slice) {}

  absl::Status post(int rank, const std::string& text) override;
  absl::StatusOr<std::string> read(int rank, TimePoint deadline) override;

 private:
  // `call` must own everything that it uses. `about` is the rank whose notice it is, for the error.
  absl::Status guarded(int about, TimePoint deadline, std::function<void()> call);

  const c10::intrusive_ptr<c10d::Store> store_;
  const Milliseconds slice_;
  StoreCaller caller_;
};

}  // namespace weft::comm_internal
