// What an RPC system implements to be measured: a server process and a client process.
//
// The harness owns the loops and the clock, so that all contestants are timed alike; a contestant
// only says what one operation is. Every operation checks its result and fails when it is wrong.
//
// Thread safety: one thread at a time calls a Client or Server; live_objects() and the operations
// of the far client run at once. Blocking: all methods may block; the driver ends a process that
// does not answer. Errors: Unimplemented from an operation says that this contestant has no such
// row.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft::bench {

// How many elements of a sent tensor the callee reports back, at equal strides, for `send` to
// check.
inline constexpr int64_t kSampledElements = 64;

class Server {
 public:
  virtual ~Server() = default;

  // Opens the door and returns the text that Client::connect needs. Does not wait for the client.
  virtual absl::StatusOr<std::string> listen() = 0;

  // Returns once calls are served; may wait for the client. They are served until close().
  virtual absl::Status serve() = 0;

  // Values kept alive for remote references; 0 again once the client has dropped them all.
  virtual int64_t live_objects() { return 0; }

  // Leaves the group; may wait for the client's close().
  virtual void close() {}
};

class Client {
 public:
  virtual ~Client() = default;

  virtual absl::Status connect(const std::string& address) = 0;

  // One `add` of two 2x2 float tensors on the server, its result checked.
  virtual absl::Status add() = 0;

  // The two halves of add(): the harness starts each slot again as soon as it has finished it.
  virtual absl::Status start_add(int slot);
  virtual absl::Status finish_add(int slot);

  // A float tensor of `bytes` bytes goes over; the callee gets a tensor of its own and answers with
  // kSampledElements elements of it at equal strides. The sampled elements differ from call to
  // call.
  virtual absl::Status send(int64_t bytes);

  // A float tensor of `bytes` bytes goes over, and a tensor of its own comes back.
  virtual absl::Status echo(int64_t bytes);

  // New context; `add` over there of two local 2x2 leaves; sum here; backward; both gradients
  // checked; context released.
  virtual absl::Status autograd_round();

  // A value is created over there by `add`, fetched through its reference, the reference dropped.
  virtual absl::Status rref_life();

  // Leaves the group; may wait for the server's close().
  virtual void close() {}
};

struct Contestant {
  std::string name;
  // Its threads poll even when nothing happens: the driver stops both processes outside their
  // blocks, or they would take the processors from all others.
  bool spins_when_idle = false;
  std::function<std::unique_ptr<Server>()> make_server;
  std::function<std::unique_ptr<Client>()> make_client;
};

}  // namespace weft::bench
