#include "weft/tests/chaos/network/network.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sched.h>
#include <stdexcept>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/tests/chaos/processes/child.h"

namespace weft::chaos {
namespace {

// For the run's files: ledgers and the output of the workers.
constexpr const char* kFolderOptions = "size=4g,mode=0755";
constexpr const char* kDiskOptions = "size=8m,mode=0755";

void run(int name_space, std::vector<std::string> command, const std::string& input) {
  const std::string text = absl::StrJoin(command, " ");
  const int code = run_child({.arguments = std::move(command),
                              .environment = {},
                              .name_space = name_space,
                              .output = {},
                              .input = input});
  if (code == 0) return;
  throw std::runtime_error(absl::StrCat(text, " ended with ", code, "; its input was:\n", input));
}

bool write_file(const char* path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  return !file.fail();
}

int open_own_namespace() { return ::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC); }

// A user namespace gives an ordinary user the rights that root has, inside of it.
bool become_root_of_a_namespace() {
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  if (user == 0) return true;
  return ::unshare(CLONE_NEWUSER) == 0 && write_file("/proc/self/setgroups", "deny") &&
         write_file("/proc/self/uid_map", absl::StrCat("0 ", user, " 1")) &&
         write_file("/proc/self/gid_map", absl::StrCat("0 ", group, " 1"));
}

bool has_tools() {
  for (const char* tool : {"ip", "nft", "ss"}) {
    const int code = run_child({.arguments = {"sh", "-c", absl::StrCat("command -v ", tool)},
                                .environment = {},
                                .name_space = -1,
                                .output = "/dev/null",
                                .input = {}});
    if (code != 0) return false;
  }
  return true;
}

// Returns an empty folder that every Debian has, so that the mount hides nothing.
std::string mount_point() {
  for (const char* folder : {"/mnt", "/media", "/srv", "/opt"}) {
    std::error_code ignored;
    if (std::filesystem::is_directory(folder, ignored) &&
        std::filesystem::is_empty(folder, ignored)) {
      return folder;
    }
  }
  throw std::runtime_error("none of /mnt, /media, /srv and /opt is empty: no place for a tmpfs");
}

}  // namespace

std::string nft_script(const PacketRules& rules) {
  std::string script = "add table inet chaos\ndelete table inet chaos\n";
  if (rules.peers.empty()) return script;
  const std::string peers = absl::StrCat("{ ", absl::StrJoin(rules.peers, ", "), " }");
  const std::string some =
      rules.permille < 1000 ? absl::StrCat("numgen random mod 1000 < ", rules.permille, " ") : "";
  const std::string death_record =
      rules.reset ? "meta l4proto tcp reject with tcp reset" : some + "drop";
  absl::StrAppend(&script, "table inet chaos {\n");
  if (rules.in) {
    absl::StrAppend(&script, "  chain in { type filter hook input priority 0; ip saddr ", peers,
                    " ", death_record, "; }\n");
  }
  if (rules.out && !rules.reset) {
    absl::StrAppend(&script, "  chain out { type filter hook output priority 0; ip daddr ", peers,
                    " ", death_record, "; }\n");
  }
  absl::StrAppend(&script, "}\n");
  return script;
}

std::unique_ptr<Network> Network::enter(size_t workers, bool isolate) {
  std::unique_ptr<Network> network(new Network());
  if (!isolate) {
    network->reason_ = "it was asked not to use namespaces";
  } else if (!has_tools()) {
    network->reason_ = "ip, nft or ss is not installed";
  } else {
    network->make_namespaces(workers);
  }
  if (network->isolated()) network->make_links();
  network->make_folders();
  return network;
}

Network::~Network() {
  for (const int name_space : name_spaces_) ::close(name_space);
  if (own_ >= 0) ::close(own_);
  if (!remove_folder_) return;
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

bool Network::make_namespaces(size_t workers) {
  const int outside = open_own_namespace();
  const auto give_up = [this, outside](const char* what) {
    reason_ = absl::StrCat("no ", what, " (", std::strerror(errno), ")");
    for (const int name_space : name_spaces_) ::close(name_space);
    name_spaces_.clear();
    (void)::setns(outside, CLONE_NEWNET);
    ::close(outside);
    return false;
  };
  if (!become_root_of_a_namespace()) return give_up("user namespace");
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return give_up("mount namespace");
  }
  if (::unshare(CLONE_NEWNET) != 0) return give_up("network namespace");
  own_ = open_own_namespace();
  for (size_t slot = 0; slot < workers; ++slot) {
    if (::unshare(CLONE_NEWNET) != 0) return give_up("network namespace for each worker");
    name_spaces_.push_back(open_own_namespace());
  }
  if (::setns(own_, CLONE_NEWNET) != 0) return give_up("way back into a network namespace");
  ::close(outside);
  return true;
}

void Network::make_links() const {
  std::string here = "link set lo up\nlink add br0 type bridge\n";
  for (size_t slot = 0; slot < name_spaces_.size(); ++slot) {
    // Through the descriptor of this process, because the namespaces have no name.
    absl::StrAppend(&here, "link add w", slot, " type veth peer name eth0 netns /proc/", ::getpid(),
                    "/fd/", name_spaces_[slot], "\nlink set w", slot, " master br0\nlink set w",
                    slot, " up\n");
  }
  absl::StrAppend(&here, "link set br0 up\naddress add 10.77.0.1/24 dev br0\n");
  run(-1, {"ip", "-batch", "-"}, here);
  for (size_t slot = 0; slot < name_spaces_.size(); ++slot) {
    run(name_spaces_[slot], {"ip", "-batch", "-"},
        absl::StrCat("link set lo up\nlink set eth0 up\naddress add ", host_of(slot),
                     "/24 dev eth0\n"));
  }
}

void Network::make_folders() {
  if (isolated()) {
    folder_ = mount_point();
    disk_ = absl::StrCat(folder_, "/disk");
    if (::mount("chaos", folder_.c_str(), "tmpfs", 0, kFolderOptions) != 0 ||
        ::mkdir(disk_.c_str(), 0755) != 0 ||
        ::mount("chaos", disk_.c_str(), "tmpfs", 0, kDiskOptions) != 0) {
      throw std::runtime_error(absl::StrCat("no tmpfs on ", folder_, ": ", std::strerror(errno)));
    }
    return;
  }
  const char* const temporary = std::getenv("TMPDIR");
  folder_ = absl::StrCat(temporary != nullptr ? temporary : "/tmp", "/weft_chaos.XXXXXX");
  if (::mkdtemp(folder_.data()) == nullptr) {
    throw std::runtime_error(absl::StrCat("no temporary folder: ", std::strerror(errno)));
  }
  remove_folder_ = true;
  disk_ = absl::StrCat(folder_, "/disk");
  std::filesystem::create_directory(disk_);
}

std::string Network::host_of(size_t slot) const {
  return isolated() ? absl::StrCat("10.77.0.", 10 + slot) : "127.0.0.1";
}

void Network::apply(size_t slot, const PacketRules& rules) const {
  run(name_spaces_[slot], {"nft", "-f", "-"}, nft_script(rules));
}

bool Network::kill_connections(size_t slot, const std::vector<std::string>& peers) const {
  for (const std::string& peer : peers) {
    const int code = run_child({.arguments = {"ss", "-K", "-t", "dst", peer},
                                .environment = {},
                                .name_space = name_spaces_[slot],
                                .output = "/dev/null",
                                .input = {}});
    if (code != 0) return false;
  }
  return true;
}

}  // namespace weft::chaos
