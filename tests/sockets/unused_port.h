// A TCP port of 127.0.0.1 for a test that must name the port before its processes listen there.
//
// A test that can hand over a listening socket, or can ask a server for its port, needs no such
// function and cannot lose the port.
//
// Thread safety: may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <unistd.h>

#include "weft/sockets/tcp_port.h"

namespace weft::testing {

// Returns a port at which nobody listens, or 0. The ports are below those that the kernel gives to
// connections and to listeners that ask for any port, because it would give the same port to other
// tests meanwhile. Processes with neighbouring ids search in different blocks of eight ports, and
// each call within a process begins with the next port of its block.
inline uint16_t unused_port() {
  constexpr int kFirst = 20000;
  constexpr int kBlocks = 1250;
  constexpr int kBlock = 8;
  static std::atomic<int> calls{0};
  const int block = kFirst + getpid() % kBlocks * kBlock;
  for (int tries = 0; tries < kBlock; ++tries) {
    const auto port = static_cast<uint16_t>(block + calls.fetch_add(1) % kBlock);
    if (listen_on("127.0.0.1", port).ok()) return port;
  }
  return 0;
}

}  // namespace weft::testing
