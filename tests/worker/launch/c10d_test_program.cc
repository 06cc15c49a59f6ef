// A program that uses c10d's TCPStore without Weft, as PyTorch's env:// does. Each rank adds 1 to a
// number, waits until all have, and prints it.
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

int main() {
  const std::string rank = std::getenv("RANK");
  const int size = std::atoi(std::getenv("WORLD_SIZE"));
  const char* const agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT")));
  options.isServer = agent == nullptr && rank == "0";
  options.waitWorkers = false;
  c10d::TCPStore store(std::getenv("MASTER_ADDR"), options);
  store.add("n", 1);
  while (store.add("n", 0) < size) std::this_thread::yield();
  std::cout << "all " << size << " came" << (agent != nullptr ? " to the launcher's store" : "")
            << std::endl;
  store.add("gone", 1);
  while (options.isServer && store.add("gone", 0) < size) std::this_thread::yield();
  return 0;
}
