// Options of one call: how long it may take, and whether large tensors are copied.
//
// Thread safety: plain values.
#pragma once

#include "weft/base/clock.h"

namespace weft {

struct CallOptions {
  // Time from the call to the reply (for `remote`: to the owner's acceptance). If it is not set, a
  // call inside a handler gets the remaining time of the handler. Other calls, and those of a
  // handler without a deadline, get the worker's default (60 s). A call inside a handler never
  // outlives the handler's deadline.
  Timeout timeout = {};
  // False: a tensor of more than 1 MiB whose storage the caller still shares is sent in place. The
  // caller must not write to it until the future completes (for `remote`: until its creation()
  // does). True: such tensors are copied first. Smaller shared tensors are always copied, and so
  // are results that the callee still holds.
  bool snapshot = false;
  // True: the caller does not read or write the tensors of this call any more, until nobody has
  // them. So they are not copied, whatever their size, and the callee may get their very memory
  // (shared_empty). A tensor that is moved into a by-value parameter needs no such promise. Not
  // together with `snapshot`: InvalidArgument.
  bool give = false;
};

}  // namespace weft
