#include "weft/rpc/transport/hello.h"

#include "absl/strings/str_cat.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/rpc/rendezvous/worker_info.h"

namespace weft::rpc_internal {

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
  if (hello.protocol() != kProtocolVersion) {
    return absl::PermissionDeniedError(absl::StrCat("protocol version ", hello.protocol(),
                                                    ", this program speaks ", kProtocolVersion));
  }
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

wire::Hello hello_of(const PeerIdentity& self) {
  wire::Hello hello;
  hello.set_protocol(kProtocolVersion);
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
