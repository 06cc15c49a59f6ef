// Certificates by which each worker of a group proves its rank and its role
// (weft_launch --certificates per-worker).
//
// Each launcher makes the keys of its own processes, and no key leaves its host. The launcher of
// node 0 makes an authority in its memory, and signs one certificate for each rank (name_of_rank,
// security/certificate_name.h). It does so once, before any process has started. If their store
// needs certificates, it also hosts one for the workers, which only processes with such a
// certificate can call. The launchers stay with their own store, which the workers cannot call
// unless they know the job's secret.
//
// Thread safety: none; one thread at a time.
// Lifetime: the workers read their files as long as this object exists.
// Protocol: docs/launch.md, "Several hosts".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/rpc/rendezvous/rendezvous_store.h"
#include "weft/security/certificates.h"
#include "weft/security/key_file.h"
#include "weft/store/rendezvous.h"
#include "weft/worker/launch/node_place.h"

namespace weft::launch {

class WorkerCertificates {
 public:
  // Makes the keys of this node's processes.
  static absl::StatusOr<WorkerCertificates> create(uint32_t processes);

  std::vector<std::string> public_keys() const;  // PEM, by local rank

  // On node 0: signs for all ranks, hosts the workers' store at a free port of the host of `place`,
  // and leaves what each node needs in `launchers`, the store at `place`. On each node, node 0
  // first: takes the certificates of its processes. After DeadlineExceeded it may be called again.
  // Errors: those of the store. InvalidArgument: a role cannot stand in a certificate, or a node
  // has sent a bad key or too few. Internal: a certificate does not fit its key, or one is missing.
  // Unavailable: no memory or descriptors for the files.
  absl::Status exchange(RendezvousStore& launchers, const RendezvousOptions& place, uint32_t node,
                        const std::vector<NodeRecord>& records);

  // The address of the workers' store. It serves as long as this object of node 0 exists.
  const std::string& store() const { return store_; }
  // By local rank: WEFT_TLS_CERT, WEFT_TLS_KEY and WEFT_TLS_CA, as NAME=VALUE.
  std::vector<std::vector<std::string>> variables() const;

 private:
  absl::Status sign(const std::vector<NodeRecord>& records, RendezvousOptions place);
  absl::Status take(RendezvousStore& launchers, uint32_t node);

  struct Files {
    KeptFile certificate, key;
  };

  std::vector<KeyPair> keys_;
  std::vector<std::string> signed_;    // on node 0: what each node must get
  std::optional<HostedStore> hosted_;  // on node 0
  std::string store_;
  KeptFile authority_;
  std::vector<Files> files_;
};

}  // namespace weft::launch
