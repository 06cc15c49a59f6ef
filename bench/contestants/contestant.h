// The interface that an RPC system implements to be measured: a server process and a client
// process.
//
// The harness owns the loops and the clock, so all contestants are timed alike. A contestant only
// defines one operation. Every operation checks its result and fails if it is wrong.
//
// Thread safety: one thread at a time calls a Client or Server, with two exceptions. live_objects()
// may run at the same time as operations of the client. If a client mixes, one thread may call
// send() while another calls add().
// Blocking: all methods may block; the driver kills a process that does not answer.
// Errors: Unimplemented from an operation means that this contestant has no such row.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft::bench {

// The number of elements of a sent tensor that the callee returns, at equal strides. `send` checks
// them.
inline constexpr int64_t kSampledElements = 64;

class Server {
 public:
  virtual ~Server() = default;

  // Opens a port and returns the address that Client::connect needs. Does not wait for the client.
  virtual absl::StatusOr<std::string> listen() = 0;

  // Returns when calls are served, and may wait for the client. Calls are served until close().
  virtual absl::Status serve() = 0;

  // The number of values kept alive for remote references. It is 0 again when the client has
  // dropped all.
  virtual int64_t live_objects() { return 0; }

  // Leaves the group; may wait for the client's close().
  virtual void close() {}
};

class Client {
 public:
  virtual ~Client() = default;

  virtual absl::Status connect(const std::string& address) = 0;

  // Runs one `add` of two 2x2 float tensors on the server and checks the result.
  virtual absl::Status add();

  // The two halves of add(). The harness starts a slot again as soon as it has finished it.
  virtual absl::Status start_add(int slot);
  virtual absl::Status finish_add(int slot);

  // Sends a float tensor of `bytes` bytes. The callee gets a tensor of its own and answers with
  // kSampledElements elements of it at equal strides. The sampled elements differ from call to
  // call.
  virtual absl::Status send(int64_t bytes);

  // Like send(), but the caller gives the tensor away: it makes a tensor for each call and moves it
  // into the call. Only the sampled elements are written, so making it costs no pass over it.
  virtual absl::Status give(int64_t bytes);

  // Sends a float tensor of `bytes` bytes, and gets a tensor of its own back.
  virtual absl::Status echo(int64_t bytes);

  // True if add() and send() may run at the same time.
  virtual bool mixes() const { return false; }

  // Makes a context and two local 2x2 leaves, left and right. Each of `width` branches begins with
  // left and adds right to it `depth` times, one remote add after the other. The branches run at
  // the same time. Sums them here and runs backward. It checks both gradients (all elements of
  // left's are `width`, those of right's `width * depth`) and releases the context.
  virtual absl::Status autograd_round(int depth, int width);

  // Creates a value on the server by `add`, fetches it through its reference, and drops the
  // reference.
  virtual absl::Status rref_life();

  // Leaves the group; may wait for the server's close().
  virtual void close() {}
};

struct Contestant {
  std::string name;
  // Not empty: one of several ways to do the same. The fastest of them, row by row, is measured
  // under this name.
  std::string variant_of = {};
  // True if its threads poll even when nothing happens. The driver stops both processes outside
  // their blocks, or they would take the processors from all other contestants.
  bool spins_when_idle = false;
  std::function<std::unique_ptr<Server>()> make_server;
  std::function<std::unique_ptr<Client>()> make_client;
};

}  // namespace weft::bench
