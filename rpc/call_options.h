// What a caller may say about one call: how long, and how tensors are handed over.
//
// Thread safety: plain values.
#pragma once

#include "weft/base/clock.h"

namespace weft {

struct CallOptions {
  // From the call to the reply (for `remote`: to the owner's acceptance). Unset: the handler's
  // remaining time inside a handler, else the worker's default (60 s). A call made inside a handler
  // never outlives the handler's own deadline.
  Timeout timeout = {};
  // Large tensors (above 1 MiB of shared storage) are sent in place and must not be written until
  // the future completes (for `remote`: until its creation() does); true copies them first. Smaller
  // ones are always copied, and so are results that the callee still holds.
  bool snapshot = false;
};

}  // namespace weft
