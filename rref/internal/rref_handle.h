// One process-wide share in a remote value: what every copy of an RRef points to.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: shared by the copies of an RRef and by messages on their way. May outlive its worker:
// then it refers to nothing. Destroying it lets the value go.
// Errors: FailedPrecondition after the worker's shutdown, RRefLost (ownership_types.h).
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "weft/rpc/codec/message.h"
#include "weft/rref/internal/ownership_types.h"

namespace weft {
class RpcRuntime;
}

namespace weft::rref_internal {

class RRefDriver;

class RRefHandle final : public AnyReference {
 public:
  RRefHandle(std::weak_ptr<RRefDriver> driver, Handle handle, WorkerId owner, TypeTag type)
      : driver_(std::move(driver)), handle_(handle), owner_(owner), type_(std::move(type)) {}
  ~RRefHandle() override;
  RRefHandle(const RRefHandle&) = delete;
  RRefHandle& operator=(const RRefHandle&) = delete;

  const Handle& handle() const { return handle_; }
  RRefId rref() const { return handle_.rref; }
  WorkerId owner() const { return owner_; }
  bool is_owner() const { return handle_.owned(); }
  const TypeTag& type() const { return type_; }

  // The worker that it belongs to, if it may be used.
  absl::StatusOr<std::shared_ptr<RRefDriver>> driver() const;
  // Whether or not it may be used; null once the worker has ended.
  std::shared_ptr<RpcRuntime> runtime() const;
  // Whether or not it may be used; the owner's id once the worker has ended.
  std::string owner_name() const;

 private:
  const std::weak_ptr<RRefDriver> driver_;  // weak: RRefs may be kept longer than their worker
  const Handle handle_;
  const WorkerId owner_;
  const TypeTag type_;
};
using RRefHandlePtr = std::shared_ptr<RRefHandle>;  // shared by the copies of one RRef

}  // namespace weft::rref_internal
