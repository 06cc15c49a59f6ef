// The command weft_cert: gives the workers of a site certificates that no other worker can claim.
//
//   weft_cert authority FOLDER
//   weft_cert issue --authority FOLDER --run-id mnist --role trainer --name worker1 --out .
//   weft_cert show worker1.pem
//
// docs/security.md describes the files.
//
// Thread safety: a free function.
// Errors: returns 2 for a wrong command line, 1 for anything else; the reason is in `errors`.
#pragma once

#include <ostream>

namespace weft::security_internal {

int run_command(int argc, const char* const* argv, std::ostream& out, std::ostream& errors);

}  // namespace weft::security_internal
