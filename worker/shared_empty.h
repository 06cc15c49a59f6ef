// Makes tensors in memory that other workers of this host can get without a copy.
//
//   at::Tensor batch = weft::shared_empty({256, 3, 224, 224});
//   fill(batch);
//   weft::rpc_sync("trainer", learn, std::move(batch));  // learn(at::Tensor batch)
//
// The receiver gets the very memory, writable, if nobody else holds the tensor: it was moved into a
// by-value parameter, it is a handler's result, or the call has CallOptions::give. Otherwise, and
// for a worker on another host, it is sent like any other tensor.
//
// Thread safety: may be called from any thread.
// Lifetime: the tensor may outlive the worker. Its memory belongs to this process until the last
// holder on any worker drops it.
#pragma once

#include <ATen/core/Tensor.h>

namespace weft {

// A CPU tensor with these sizes and undefined content, in the memory of the current worker
// (call_scope.h). `options` may name the dtype. If the worker's shared memory is in use, or there
// is none, the tensor lies in ordinary memory, and sends copy it. Throws RpcError:
// FailedPrecondition if there is no current worker, InvalidArgument for a negative size or another
// device or layout.
at::Tensor shared_empty(at::IntArrayRef sizes, const at::TensorOptions& options = {});

}  // namespace weft
