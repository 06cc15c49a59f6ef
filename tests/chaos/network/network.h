// The network and the folders of a chaos run: one network namespace per worker, and folders in
// memory. The kernel removes them with this process, however it exits.
//
// As root, or where users may create namespaces, this process moves to a network of its own. It has
// a bridge, and behind it one anonymous namespace per worker. Only the descriptors of this object
// keep them. The mounts are its own as well. An empty folder such as /media becomes a tmpfs for the
// run's files. `disk` is a small tmpfs in it, which checkpoints fill.
//
// Otherwise the workers share loopback, the files lie in a folder under $TMPDIR that the destructor
// removes, and packets cannot be dropped.
//
// Thread safety: none; `enter` must come before the process has a second thread.
// Blocking: every method runs ip, nft or ss and waits for it.
// Errors: std::runtime_error naming the command that failed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace weft::chaos {

// Rules for packets in a worker's namespace. Peers are IPv4 addresses.
struct PacketRules {
  std::vector<std::string> peers;  // packets from (in) and to (out) these
  bool in = true;
  bool out = true;
  uint64_t permille = 1000;  // of 1000 packets, so many are dropped
  bool reset = false;        // arriving TCP segments are answered by RST instead
};
// Returns a script for nft -f that replaces the earlier rules. Without rules it removes them.
std::string nft_script(const PacketRules& rules);

class Network {
 public:
  // `isolate` false: uses loopback and a temporary folder, even where namespaces are allowed.
  static std::unique_ptr<Network> enter(size_t workers, bool isolate);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  bool isolated() const { return !name_spaces_.empty(); }
  // Says why not, for the user of the run.
  const std::string& reason() const { return reason_; }

  std::string store_host() const { return isolated() ? "10.77.0.1" : "127.0.0.1"; }
  std::string host_of(size_t slot) const;
  int name_space_of(size_t slot) const { return isolated() ? name_spaces_[slot] : -1; }
  const std::string& folder() const { return folder_; }  // for the run's files
  const std::string& disk() const { return disk_; }      // for checkpoints

  // Requires isolated().
  void apply(size_t slot, const PacketRules& rules) const;
  void heal(size_t slot) const { apply(slot, {}); }
  // Resets the slot's connections to these peers. Returns false if the kernel cannot do this.
  bool kill_connections(size_t slot, const std::vector<std::string>& peers) const;

 private:
  Network() = default;
  bool make_namespaces(size_t workers);
  void make_links() const;
  void make_folders();

  int own_ = -1;                  // descriptor of the namespace with the bridge
  std::vector<int> name_spaces_;  // of the slots
  std::string reason_;
  std::string folder_;
  std::string disk_;
  bool remove_folder_ = false;
};

}  // namespace weft::chaos
