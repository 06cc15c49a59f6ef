// Speaks the protocol of shared memory by hand, as a peer that may do anything.
//
// Thread safety: free functions.
// Blocking: up to kPatience.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "weft/async/future.h"
#include "weft/rpc/same_host/connection/pair_memory.h"
#include "weft/rpc/same_host/handshake.h"
#include "weft/rpc/same_host/same_host_transport.h"
#include "weft/rpc/transport/hello.h"
#include "weft/sockets/local_socket.h"
#include "weft/tests/rpc/transport/recorder.h"

namespace weft::testing {

inline LocalSocket::TimePoint soon() { return std::chrono::steady_clock::now() + kPatience; }

inline std::unique_ptr<End> same_host_end(Clock& clock, uint32_t index,
                                          SameHostTransportOptions options = {}) {
  auto end = std::make_unique<End>();
  end->transport = std::make_unique<SameHostTransport>(clock, options);
  end->identity = {"group", "w" + std::to_string(index), {index, 1}};
  EXPECT_TRUE(end->transport->listen().ok());
  return end;
}
inline std::unique_ptr<End> started_end(Clock& clock, uint32_t index,
                                        SameHostTransportOptions options = {}) {
  auto end = same_host_end(clock, index, options);
  EXPECT_TRUE(end->transport->start(end->identity, &end->sink).ok());
  return end;
}

// Dials, and returns what the callback of connect() gets.
inline Future<ConnectionPtr> dial_from(End& from, const std::string& address,
                                       const PeerIdentity& expected, TimePoint deadline) {
  from.sink.expect_dialling();
  Promise<ConnectionPtr> promise;
  Future<ConnectionPtr> future = promise.future();
  from.transport->connect(address, expected, deadline,
                          [promise = std::move(promise)](absl::StatusOr<ConnectionPtr> result) {
                            promise.set(std::move(result));
                          });
  return future;
}
inline absl::StatusOr<ConnectionPtr> connect_ends(End& from, End& to) {
  return dial_from(from, to.transport->address(), to.identity, soon()).result();
}

inline PeerIdentity raw_identity() { return {"group", "raw", {77, 1}}; }

// The introduction of an honest peer.
inline rpc_internal::Introduction honest_hello(const End& to, uint32_t ring_bytes = 4096) {
  rpc_internal::Introduction hello;
  hello.slot = 3;
  hello.ring_bytes = ring_bytes;
  hello.hello = rpc_internal::hello_of(raw_identity());
  hello.hello.set_expected(to.identity.id.bits());
  return hello;
}

inline LocalSocket raw_connect(const End& to) {
  const std::string listener = rpc_internal::listener_at(to.transport->address()).value();
  absl::StatusOr<LocalSocket> socket = LocalSocket::connect(listener, soon());
  EXPECT_TRUE(socket.ok()) << socket.status();
  return *std::move(socket);
}

// A dialler by hand: its own shared memory, and what it got from the acceptor.
struct RawPeer {
  explicit RawPeer(const End& to)
      : memory(rpc_internal::PairMemory::create(4096).value()),
        page(rpc_internal::WakePage::create().value()),
        socket(raw_connect(to)) {
    const int descriptors[] = {memory.descriptor(), page->descriptor()};
    EXPECT_TRUE(socket.send(encode_introduction(honest_hello(to)), descriptors, soon()).ok());
    absl::StatusOr<LocalSocket::Message> message = socket.receive(soon());
    EXPECT_TRUE(message.ok()) << message.status();
    const auto welcome = rpc_internal::decode_introduction(message->bytes);
    EXPECT_TRUE(welcome.ok()) << welcome.status();
    EXPECT_EQ(message->descriptors.size(), 1u);
    slot = welcome->slot;
    far_page = rpc_internal::WakePage::adopt(std::move(message->descriptors[0])).value();
  }

  rpc_internal::PairMemory memory;
  std::shared_ptr<rpc_internal::WakePage> page;
  std::shared_ptr<rpc_internal::WakePage> far_page;  // of the worker that it has dialled
  LocalSocket socket;
  uint32_t slot = 0;
};

}  // namespace weft::testing
