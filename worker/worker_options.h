// Holds what a worker needs to know before it joins: its position in the group and its limits.
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
#include "weft/launcher/launch_environment.h"
#include "weft/rpc/membership/lease_options.h"
#include "weft/rpc/registry.h"
#include "weft/rpc/rendezvous/rendezvous_store.h"
#include "weft/rpc/rendezvous/worker_info.h"
#include "weft/rpc/transport/transport.h"
#include "weft/security/security_mode.h"

namespace weft {

class LeafObserver;

struct WorkerOptions {
  // The options from the launcher's variables (weft_launch, torchrun, or set by hand). Launchers
  // count their ranks, so RANK is below WORLD_SIZE in a dynamic group too.
  static WorkerOptions from_env();

  // Rank, world size, address of the store, number of restarts, and role.
  LaunchEnvironment place = {};
  std::string name = {};  // unique in the group; empty: "worker<rank>"

  Timeout default_timeout = std::chrono::seconds(60);   // of calls without a timeout
  Timeout shutdown_timeout = std::chrono::seconds(60);  // of shutdowns without a timeout
  Timeout join_timeout = std::chrono::seconds(60);      // of each part of joining

  size_t threads = 2;         // handlers that work at the same time, without those that wait
  size_t max_threads = 1024;  // including those that wait
  // Credits: how many calls and bytes may be on their way to one peer, or wait in its queue.
  // Further calls wait here. If more than the queue's limits wait, rpc_sync and to_here wait for
  // their turn, and other calls are refused with ResourceExhausted.
  uint64_t call_credits = 4096;
  uint64_t byte_credits = uint64_t{256} << 20;
  size_t max_queued_calls = 65536;
  size_t max_queued_bytes = size_t{1} << 30;

  // How long the thread that reads messages polls for the next one before it sleeps. It polls only
  // while messages come quickly and nobody else needs the processor (docs/threading.md). 0: never.
  Nanoseconds spin = std::chrono::microseconds(100);
  // Whether workers of one host talk through shared memory. If something is missing for that, they
  // use gRPC, as they do across hosts, and the log says why. from_env() reads WEFT_SAME_HOST: auto
  // (the default) or off.
  enum class SameHost { kAuto, kOff };
  SameHost same_host = SameHost::kAuto;
  // This says who may connect to this worker (docs/security.md). It must be the same on all workers
  // of the group. from_env() reads WEFT_SECURITY: auto (the default), mtls or none.
  //
  // kAuto: if the group stays on this host, only processes of this user and root, and the worker
  // opens no TCP port. Otherwise as kMtls.
  // kMtls: processes that have a certificate of the job, and through shared memory those of this
  // user and root. TCP connections are encrypted. security/worker_identity.h says where the
  // certificate comes from.
  // kNone: everybody who reaches the worker's port.
  using Security = SecurityMode;
  Security security = Security::kAuto;

  // The newest version of the wire protocol that this worker speaks (docs/upgrading.md). Lower it
  // only to test a group of mixed versions. from_env() reads WEFT_NEWEST_PROTOCOL.
  uint32_t newest_protocol = kProtocols.newest;

  // A dynamic group has no size. Workers join it at any time under their `name`, and shutdown
  // concerns one worker alone. World size has no meaning there, and the rank may be any number. But
  // rank 0 hosts the store unless the launcher does (place.agent_hosts_store).
  bool dynamic = false;
  // How long a worker may be silent before the others suspect it and declare it dead. It must be
  // the same on all workers of the group, and nothing compares it (rpc/membership/lease_options.h).
  LeaseOptions lease = {};
  // Called on this worker's executor when a worker joins, leaves or dies. `why` is the reason of a
  // death. Several calls may run at the same time, in any order. Worker::member_events is the same
  // in order, and includes the members that are present already.
  std::function<void(const WorkerInfo& worker, MemberChange change, const absl::Status& why)>
      on_member_change = nullptr;

  // The file that says which roles may call which functions of this worker
  // (security/rights/access_policy.h); from_env() reads WEFT_POLICY_FILE. Empty: what the
  // registrations say.
  std::string policy_file = {};

  // A file that exists while this worker is a member of its group. from_env() reads
  // WEFT_READY_FILE. If several processes of the job are on this host, it adds "." and the local
  // rank. Empty: there is none.
  std::string ready_file = {};

  // The host at which peers reach this worker; from_env() sets it to find_listen_host()
  // (sockets/listen_host.h): WEFT_LISTEN_HOST, or an address of WEFT_SOCKET_IFNAME. Empty: if the
  // store is at a loopback address or has none, the group stays on this host. Otherwise it is the
  // address of the interface that reaches the store, or, if there is none, this machine's host
  // name.
  std::string listen_host = {};

  // Functions of this worker alone, in addition to those of the catalogue.
  RegistryBuilder registry = {};
  // ATen operators that peers may run here by name (rpc/aten/aten.h), such as "aten::add.Tensor".
  std::vector<std::string> allow_operators = {};

  // Sees every gradient of a backward pass on this worker (dist_autograd/graph/leaf_observer.h).
  // Shared, because a pass that is left behind may still use it.
  std::shared_ptr<LeafObserver> leaf_observer = nullptr;

  // Null: the store that the launch environment names. Shared, because the worker keeps it while it
  // lives, and several workers of one process may use the same.
  std::shared_ptr<RendezvousStore> store = nullptr;
  // Null: shared memory to workers of this host, unless `same_host` says otherwise, and gRPC.
  std::function<std::unique_ptr<Transport>(Clock& clock)> transport = nullptr;

  std::string effective_name() const;
  // place.role_name, or "default". What this worker may call depends on it. A role has 1 to 127
  // letters, digits, '-', '.' and '_'.
  std::string effective_role() const;
  std::string effective_listen_host() const;
  // Whether peers can only be on this host, because nothing says where others reach this worker.
  bool stays_on_host() const;
  // InvalidArgument; the text names the field and its value.
  absl::Status validate() const;
};

}  // namespace weft
