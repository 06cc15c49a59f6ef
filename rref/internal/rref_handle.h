// An RRefHandle is one reference of a worker to a value; all copies of an RRef point to it.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: shared by the copies of an RRef, and by messages and calls under way. It may outlive
// its worker; then it refers to nothing. Its destructor releases the reference.
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
  RRefHandle(std::weak_ptr<RRefDriver> driver, Handle handle, WorkerId owner, Target target)
      : driver_(std::move(driver)), handle_(handle), owner_(owner), target_(std::move(target)) {}
  ~RRefHandle() override;
  RRefHandle(const RRefHandle&) = delete;
  RRefHandle& operator=(const RRefHandle&) = delete;

  const Handle& handle() const { return handle_; }
  RRefId rref() const { return handle_.rref; }
  WorkerId owner() const { return owner_; }
  bool is_owner() const { return handle_.owned(); }
  const TypeTag& type() const { return target_.type; }
  RRefKey key() const { return target_.key; }
  // A call on the object carries this.
  const Target& target() const { return target_; }

  // The driver of the worker that it belongs to, if the reference may be used; else why not.
  absl::StatusOr<std::shared_ptr<RRefDriver>> driver() const;
  // The next two work even if the reference may not be used. Once the worker is destroyed,
  // `runtime` is null and `owner_name` is the text of the owner's id.
  std::shared_ptr<RpcRuntime> runtime() const;
  std::string owner_name() const;

 private:
  const std::weak_ptr<RRefDriver> driver_;  // weak: an RRef may outlive its worker
  const Handle handle_;
  const WorkerId owner_;
  const Target target_;
};
using RRefHandlePtr = std::shared_ptr<RRefHandle>;  // shared by the copies of one RRef

}  // namespace weft::rref_internal
