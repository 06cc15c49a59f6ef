// LibTorch's Gloo as a backend, for CPU tensors of ranks on any hosts that reach each other by TCP.
//
// Tensors that are written have no gaps, and where they are not contiguous are laid out alike on
// all ranks. Reductions take fp16, bf16, fp32, fp64, 8, 32 and 64 bit integers and booleans,
// all_reduce also sums of complex and of sparse tensors; everything else moves any type. All ranks
// must call the same operations in the same order with equal sizes: where sizes differ, Gloo ends
// the process
// ("Received data size doesn't match expected size").
//
// A process that makes one ignores SIGPIPE from then on, if it had left it at its default: Gloo
// writes to sockets of ranks that are gone.
//
// Thread safety: all methods may be called from any thread; the order of calls must be the same on
// all ranks. Lifetime: must not end in a callback of a future of its own, whose thread it waits
// for. Blocking: creating, until all ranks have come; Work::wait; monitoredBarrier; the end, until
// all work is done. The rest only starts. Errors: c10::ValueError for arguments that cannot be, an
// unknown interface among them; from Work::wait what Gloo throws, a std::exception that need not
// name the rank.
#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft {

// `interface`: of the network, "eth0" say, or several, "eth0,eth1". "": GLOO_SOCKET_IFNAME if it is
// set, else the one that this machine's host name stands for, else loopback. On Debian the name
// often stands for 127.0.1.1, where ranks on other hosts do not reach it.
c10::intrusive_ptr<c10d::Backend> create_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                      int rank, int size,
                                                      std::chrono::milliseconds timeout,
                                                      const std::string& interface = "");

// Around another backend: before each collective ranks compare over Gloo what they call, its shapes
// and types (c10d::ProcessGroupWrapper). Where they differ, every rank gets an error that says how.
c10::intrusive_ptr<c10d::Backend> create_checked_backend(
    c10::intrusive_ptr<c10d::Backend> backend, const c10::intrusive_ptr<c10d::Store>& store,
    std::chrono::milliseconds timeout);

}  // namespace weft
