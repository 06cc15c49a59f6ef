#include "weft/sockets/listen_host.h"

#include <arpa/inet.h>
#include <cerrno>
#include <ifaddrs.h>
#include <map>
#include <memory>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace weft {
namespace {

constexpr char kInterfaces[] = "WEFT_SOCKET_IFNAME";

// "" for addresses that other hosts cannot use without the name of an interface of theirs.
std::string address_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address == nullptr) return "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
              sizeof(text));
    return text;
  }
  if (address->sa_family != AF_INET6) return "";
  const in6_addr& bytes = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  if (IN6_IS_ADDR_LINKLOCAL(&bytes)) return "";
  inet_ntop(AF_INET6, &bytes, text, sizeof(text));
  return absl::StrCat("[", text, "]");
}

// The address of each interface that runs.
absl::StatusOr<std::map<std::string, std::string>> addresses_of_interfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    return absl::InternalError(absl::StrCat("this host's interfaces: ", strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, &freeifaddrs);
  std::map<std::string, std::string> addresses;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    const std::string text = (one->ifa_flags & IFF_RUNNING) != 0 ? address_text(one->ifa_addr) : "";
    if (text.empty()) continue;
    std::string& kept = addresses[one->ifa_name];
    if (kept.empty() || (kept.front() == '[' && text.front() != '[')) kept = text;
  }
  return addresses;
}

}  // namespace

absl::StatusOr<std::string> find_listen_host(const EnvironmentReader& read) {
  if (const auto host = read("WEFT_LISTEN_HOST"); host.has_value() && !host->empty()) return *host;
  const std::string names = read(kInterfaces).value_or("");
  if (names.empty()) return std::string();
  const auto addresses = addresses_of_interfaces();
  if (!addresses.ok()) return addresses.status();
  for (const auto& part : absl::StrSplit(names, ',')) {
    const std::string name(absl::StripAsciiWhitespace(part));
    if (const auto found = addresses->find(name); found != addresses->end()) return found->second;
  }
  std::vector<std::string> there;
  for (const auto& [name, address] : *addresses) {
    there.push_back(absl::StrCat(name, " (", address, ")"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "environment variable ", kInterfaces, "='", names,
      "': none of these runs with an address here; ",
      there.empty() ? "there are no others" : "others do: ", absl::StrJoin(there, ", ")));
}

}  // namespace weft
