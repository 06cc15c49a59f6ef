// Makes a backend of LibTorch's Gloo, for CPU tensors of ranks on hosts that reach each other by
// TCP.
//
// A tensor that is written must have no gaps. If it is not contiguous, it must have the same
// strides on all ranks. Reductions take fp16, bf16, fp32, fp64, 8, 32 and 64 bit integers and
// booleans. all_reduce also takes sums of complex and of sparse tensors. The other operations move
// any data type.
//
// All ranks must call the same operations in the same order with equal sizes. If sizes differ, Gloo
// ends the process ("Received data size doesn't match expected size").
//
// Making a backend sets SIGPIPE to ignored for the process, if it is at its default: Gloo writes to
// sockets of ranks that are gone.
//
// Thread safety: all methods may be called from any thread. The order of calls must be the same on
// all ranks.
// Lifetime: do not destroy the backend in a callback of one of its own futures: the destructor
// waits for the thread of this callback.
// Blocking: creation, until all ranks have come; Work::wait; monitoredBarrier; the destructor,
// until all work is done. All other calls only start an operation.
// Errors: c10::ValueError for invalid arguments and for an unknown network interface.
// c10::DistBackendError if the ranks cannot connect, and for calls after abort(). Work::wait throws
// what Gloo throws: a std::exception that need not name the rank.
#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft {

// `interface` names one network interface ("eth0") or several ("eth0,eth1"). If it is empty,
// GLOO_SOCKET_IFNAME is used. If that is empty too, Gloo takes the interface that this machine's
// host name resolves to, or else loopback. On Debian the host name often resolves to 127.0.1.1,
// which ranks on other hosts cannot reach.
c10::intrusive_ptr<c10d::Backend> create_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                      int rank, int size,
                                                      std::chrono::milliseconds timeout,
                                                      const std::string& interface = "");

// Wraps another backend. Before each collective, the ranks compare over Gloo which operation they
// call, with which shapes and types (c10d::ProcessGroupWrapper). If these differ, every rank gets
// an error that says how.
c10::intrusive_ptr<c10d::Backend> create_checked_backend(
    c10::intrusive_ptr<c10d::Backend> backend, const c10::intrusive_ptr<c10d::Store>& store,
    std::chrono::milliseconds timeout);

}  // namespace weft
