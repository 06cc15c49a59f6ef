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

// The wire name of the function that runs the operators.
inline constexpr std::string_view kAtenFunction = "aten";

// Adds this function, with the operators that the worker allows. InvalidArgument lists each name
// that is no operator ("aten::add.Tensor"), and each operator that is always refused because it
// takes paths, generators or storage.
absl::Status add_operators(const std::vector<std::string>& allowed, RegistryBuilder& registry);

}  // namespace weft::rpc_internal
