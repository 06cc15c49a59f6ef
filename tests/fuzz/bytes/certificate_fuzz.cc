// The PEM text of a certificate that a peer shows. If its name is accepted, it is the only one and
// has one form.
#include <string>
#include <vector>

#include "weft/security/certificates.h"
#include "weft/tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::fuzz;
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> uris = weft::uris_of_certificate(text);
  if (uris.empty()) uris.push_back(text);  // also names without a certificate
  const auto name = weft::only_certificate_name(uris);
  if (!name.ok()) {
    require_refusal(name.status());
    return 0;
  }
  require(name->uri() == uris.front(), "a name has a second form");
  const auto peer = weft::name_in_job(*name, uris);
  require(peer.ok() && *peer == *name, "a name is not of its own job");
  return 0;
}
