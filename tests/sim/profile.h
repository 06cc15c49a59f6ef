// The profile of a run: its programs and faults. kShutdown has a world of its own.
//
// Thread safety: a plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft::sim {

enum class Profile : uint8_t {
  kEverything,  // calls, references, passes and steps, under all faults
  kSteps,       // steps; callers and owners die in the middle, often two
  kJoining,     // workers join statically or dynamically, die, restart
  kShutdown,    // a group shuts down by quiescence (shutdown_world.h)
};
inline constexpr size_t kProfiles = static_cast<size_t>(Profile::kShutdown) + 1;
inline constexpr std::string_view kProfileNames[kProfiles] = {"everything", "steps", "joining",
                                                              "shutdown"};
constexpr std::string_view name_of(Profile profile) {
  return kProfileNames[static_cast<size_t>(profile)];
}

}  // namespace weft::sim
