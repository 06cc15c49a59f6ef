// weft_c10d_store PORT: serves a TCPStore of c10d until it is killed. Its standard input is a
// socket that listens at this port. weft_launch --c10d-store starts it, for programs that use c10d
// without Weft.

#include <cstdio>
#include <exception>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/strings/numbers.h"

int main(int argc, char** argv) {
  int port = 0;
  if (argc != 2 || !absl::SimpleAtoi(argv[1], &port) || port < 1 || port > 65535) {
    std::fputs("usage: weft_c10d_store PORT < LISTENING_SOCKET\n", stderr);
    return 2;
  }
  try {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.isServer = true;
    options.waitWorkers = false;
    options.masterListenFd = STDIN_FILENO;
    const c10d::TCPStore store("localhost", options);
    while (true) pause();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft_c10d_store: %s\n", error.what());
    return 1;
  }
}
