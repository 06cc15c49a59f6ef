// What a run is about: its programs and faults, or a world of its own.
//
// Thread safety: a plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft::sim {

enum class Profile : uint8_t {
  kEverything,  // calls, references, passes and steps, under all faults
  kSteps,       // optimizers' steps; callers and owners die in the middle of one, often two
  kJoining,     // workers join at the same time, statically and dynamically, die and are restarted
  kShutdown,    // a group ends by quiescence (shutdown_world.h)
};
inline constexpr size_t kProfiles = static_cast<size_t>(Profile::kShutdown) + 1;
inline constexpr std::string_view kProfileNames[kProfiles] = {"everything", "steps", "joining",
                                                              "shutdown"};
constexpr std::string_view name_of(Profile profile) {
  return kProfileNames[static_cast<size_t>(profile)];
}

}  // namespace weft::sim
