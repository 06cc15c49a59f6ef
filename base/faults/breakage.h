// Lets a test switch off a rule of a protocol, to check that a run or a test finds the violation.
//
// `if (WEFT_BREAK(rule)) ...` is `if (false) ...` unless the tree is configured with
// -DWEFT_BREAKAGES=ON. The presets for development do so; release and installed builds do not.
//
// Thread safety: WEFT_BREAK works on any thread. A rule is switched only while no code that names
// it runs.
#pragma once

#include <string_view>

namespace weft {

// Whether this build has the switches.
bool has_breakages();
void set_breakage(std::string_view rule, bool broken);
// The switch of a rule, which is off at first. The reference is valid until the process ends.
const bool& breakage(std::string_view rule);

}  // namespace weft

#ifdef WEFT_BREAKAGES
#define WEFT_BREAK(rule)                                 \
  ([] {                                                  \
    static const bool& broken = ::weft::breakage(#rule); \
    return broken;                                       \
  }())
#else
#define WEFT_BREAK(rule) false
#endif
