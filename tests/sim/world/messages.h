// The contents of the simulator's frames: plain structs that the frame's only payload owns.
//
// Headers, sequence numbers, credit and acknowledgements are those of the library. Only the
// encoding of bodies is left out. The size of a payload is the size that the frame claims to have.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "weft/base/status.h"
#include "weft/dist_autograd/passes/pass_messages.h"
#include "weft/rpc/session/internal/peer.h"
#include "weft/rref/internal/ownership_types.h"
#include "weft/tests/sim/rooms/step_messages.h"

namespace weft::sim {

enum class CallKind : uint8_t {
  kPlain,
  kCreate,  // remote(): the result stays with the callee
  kMethod,  // on an object at the callee
  kFetch,   // to_here()
  kStep,    // a message of a step, to an owner of parameters
};

struct CallBody {
  uint64_t ledger = 0;  // the number of the call in the checker's book
  CallKind kind = CallKind::kPlain;
  std::vector<rref_internal::Reference> references;
  RRefId rref;                     // creation: the new object; method, fetch: the target
  ForkId fork;                     // creation: the caller's fork
  rref_internal::RRefKey key = 0;  // method, fetch: of the target
  ContextId context;
  dist_autograd_internal::AutogradMetadata metadata;
  size_t transfer = 0;  // index in the context's recorded program, if metadata.send is valid
  uint32_t depth = 0;
  std::shared_ptr<StepRequest> step;  // shared with the sender's session, as all of this is
};

struct ReplyBody {
  uint64_t ledger = 0;
  bool ok = true;
  Ran ran = Ran::kYes;  // if it is an error
  std::vector<rref_internal::Reference> references;
  ContextId context;
  dist_autograd_internal::AutogradMetadata metadata;
  size_t transfer = 0;
  std::shared_ptr<StepReply> step;  // shared like the request
};

// The last message caused the post. Earlier ones piggyback on it, because no worker waits for them.
struct AutogradPost {
  std::vector<dist_autograd_internal::AutogradMessage> messages;
};

// These incarnations are dead. The writer of the newest death record says so.
struct DeathRecordPost {
  std::vector<WorkerId> dead;
};

template <class Body>
Payload pack(std::shared_ptr<Body> body, size_t bytes) {
  return Payload{nullptr, bytes, std::move(body)};
}
template <class Body>
std::shared_ptr<Body> unpack(const Frame& frame) {
  return frame.payloads.empty() ? nullptr
                                : std::static_pointer_cast<Body>(frame.payloads.front().owner);
}

}  // namespace weft::sim
