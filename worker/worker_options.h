// What a worker needs to know before it joins: its place in the group and its limits.
//
// Thread safety: a plain value.
// Errors: from_env throws RpcError (InvalidArgument naming every variable that is missing or bad).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/launch_environment.h"
#include "weft/rpc/membership/lease_options.h"
#include "weft/rpc/registry.h"
#include "weft/rpc/rendezvous/rendezvous_store.h"
#include "weft/rpc/rendezvous/worker_info.h"
#include "weft/rpc/transport/transport.h"

namespace weft {

class LeafObserver;

struct WorkerOptions {
  // The place that the launcher gave this process (weft_launch, torchrun, or set by hand).
  // Launchers count their ranks, so RANK is below WORLD_SIZE there in a dynamic group too.
  static WorkerOptions from_env();

  // Rank, world size, where the store is, which restart this is.
  LaunchEnvironment place = {};
  std::string name = {};  // unique in the group; empty: "worker<rank>"

  Timeout default_timeout = std::chrono::seconds(60);   // of calls that name none
  Timeout shutdown_timeout = std::chrono::seconds(60);  // of shutdowns that name none
  Timeout join_timeout = std::chrono::seconds(60);      // of each part of joining

  size_t threads = 2;         // handlers at work at the same time, not counting those that wait
  size_t max_threads = 1024;  // waiting ones included
  // What may be on its way to one peer, or wait in its queue, before further calls wait here; and
  // how many may wait here before calls are refused (ResourceExhausted).
  uint64_t call_credits = 4096;
  uint64_t byte_credits = uint64_t{256} << 20;
  size_t max_queued_calls = 65536;
  size_t max_queued_bytes = size_t{1} << 30;

  // How long the thread that reads messages looks for the next one before it sleeps, where they
  // come quickly and nobody else needs the processor (docs/threading.md); 0: never.
  Nanoseconds spin = std::chrono::microseconds(100);

  // A group without a size: workers join it at any time under their `name`, and shutdown concerns
  // one worker alone. Rank and world size do not count, and the rank may be any number; but
  // rank 0 hosts the store unless the launcher does (place.agent_hosts_store).
  bool dynamic = false;
  // How long a worker may be silent before the others hold it for dead. The same on all workers of
  // the group: nothing compares them (rpc/lease_options.h).
  LeaseOptions lease = {};
  // Told of workers that join, leave and die, on this worker's executor; why, for those that died.
  std::function<void(const WorkerInfo& worker, MemberChange change, const absl::Status& why)>
      on_member_change = nullptr;

  // Where peers reach this worker. Empty: loopback if the store is there too, else the host's name.
  std::string listen_host = {};

  // Functions beside the catalogue's, for this worker alone.
  RegistryBuilder registry = {};
  // ATen operators that peers may run here by name (rpc/aten.h), such as "aten::add.Tensor".
  std::vector<std::string> allow_operators = {};

  // Sees every gradient of a backward pass here (dist_autograd/leaf_observer.h). Shared: a pass
  // that is left behind may still use it.
  std::shared_ptr<LeafObserver> leaf_observer = nullptr;

  // Null: the store that the launch environment names. Shared: the worker keeps it as long as it
  // lives, and several workers of one process may use the same.
  std::shared_ptr<RendezvousStore> store = nullptr;
  // Null: gRPC.
  std::function<std::unique_ptr<Transport>(Clock& clock)> transport = nullptr;

  std::string effective_name() const;
  std::string effective_listen_host() const;
  // InvalidArgument naming the field and its value.
  absl::Status validate() const;
};

}  // namespace weft
