#include "weft/rpc/transport/hello.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/rpc/rendezvous/worker_info.h"

namespace weft::rpc_internal {
namespace {

// Workers of this version and earlier ones speak one version, and say only that.
constexpr uint32_t kLastWithoutRange = 6;

ProtocolRange protocols_of(const wire::Hello& hello) {
  return {hello.protocol(), std::max(hello.protocol(), hello.newest_protocol())};
}

std::string to_text(ProtocolRange range) {
  if (range.oldest == range.newest) return absl::StrCat("version ", range.newest);
  return absl::StrCat("versions ", range.oldest, " to ", range.newest);
}

}  // namespace

absl::StatusOr<wire::Hello> parse_hello(std::string_view text) {
  wire::Hello hello;
  if (text.empty()) return absl::InvalidArgumentError("a stream without a hello");
  if (text.size() > kMostHello) {
    return absl::InvalidArgumentError(
        absl::StrCat("a hello of ", text.size(), " bytes exceeds ", kMostHello));
  }
  if (!hello.ParseFromArray(text.data(), static_cast<int>(text.size()))) {
    return absl::InvalidArgumentError("a hello cannot be parsed");
  }
  WEFT_RETURN_IF_ERROR(common_protocol(hello, kProtocols).status());
  const absl::Status named = check_worker_name(hello.name());
  if (!named.ok()) return prepend("a hello: ", named);
  for (const std::string* field :
       {&hello.group(), &hello.address(), &hello.security(), &hello.role()}) {
    if (field->size() <= kMostHello && printable(*field, kMostHello) == *field) continue;
    return absl::InvalidArgumentError(absl::StrCat("a hello of worker '", hello.name(), "' whose ",
                                                   field == &hello.group()     ? "group"
                                                   : field == &hello.address() ? "address"
                                                   : field == &hello.role()    ? "role"
                                                                               : "security",
                                                   " is '", printable(*field),
                                                   "', which is not printable"));
  }
  return hello;
}

absl::StatusOr<uint32_t> common_protocol(const wire::Hello& hello, ProtocolRange here) {
  const ProtocolRange there = protocols_of(hello);
  const uint32_t newest = std::min(here.newest, there.newest);
  if (there.oldest > 0 && newest >= std::max(here.oldest, there.oldest)) return newest;
  return absl::PermissionDeniedError(absl::StrCat("the far end speaks ", to_text(there),
                                                  " of the protocol, this worker ", to_text(here)));
}

wire::Hello hello_of(const PeerIdentity& self) {
  wire::Hello hello = answer_of(self, self.protocols.oldest);
  if (self.protocols.newest > kLastWithoutRange) hello.set_newest_protocol(self.protocols.newest);
  return hello;
}

wire::Hello answer_of(const PeerIdentity& self, uint32_t protocol) {
  wire::Hello hello;
  hello.set_protocol(protocol);
  hello.set_group(self.group);
  hello.set_name(self.name);
  hello.set_worker(self.id.bits());
  hello.set_address(self.address);
  hello.set_security(self.security);
  hello.set_role(self.role);
  return hello;
}

PeerIdentity identity_of(const wire::Hello& hello) {
  return {hello.group(),   hello.name(),     WorkerId::from_bits(hello.worker()),
          hello.address(), hello.security(), hello.role()};
}

}  // namespace weft::rpc_internal
