// Runs ATen operators by name for peers, if this worker allows them.
//
// Thread safety: the functions may be called from any thread.
// Errors: docs/errors.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "weft/rpc/registry.h"

namespace weft::rpc_internal {

// The function that runs them: its name on the wire.
inline constexpr std::string_view kAtenFunction = "weft.aten";

// The entry that every worker has, with what it allows. InvalidArgument lists every name that is no
// operator ("aten::add.Tensor") or is refused always: those that take paths, generators or storage.
absl::Status add_operators(const std::vector<std::string>& allowed, RegistryBuilder& registry);

}  // namespace weft::rpc_internal
