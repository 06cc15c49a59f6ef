// LibTorch's Gloo as a backend, for CPU tensors of ranks on any hosts that reach each other by TCP.
//
// Thread safety, lifetime, blocking: as c10d::Backend; creating waits until all ranks have come.
// Errors: c10::Error naming what could not be reached; an unknown interface is c10::ValueError.
#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft {

// `interface`: of the network, "eth0" say. "": GLOO_SOCKET_IFNAME if it is set, else the one that
// this machine's host name stands for, else loopback.
c10::intrusive_ptr<c10d::Backend> create_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                      int rank, int size,
                                                      std::chrono::milliseconds timeout,
                                                      const std::string& interface = "");

}  // namespace weft
