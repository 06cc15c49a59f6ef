// Rules of the protocols that a test may break on purpose, to see that the simulator finds it.
//
// `if (WEFT_BREAK(name)) ...` is `if (false) ...` in every library; only the test executables that
// compile the cores with WEFT_BREAKAGES (tests/sim) can switch a rule off.
//
// Thread safety: rules are switched while no core runs.
#pragma once

#ifdef WEFT_BREAKAGES

namespace weft {
// The switch of a rule; the name is new or known. It lives for ever.
const bool& breakage(const char* name);
}  // namespace weft

#define WEFT_BREAK(name)                                 \
  ([] {                                                  \
    static const bool& broken = ::weft::breakage(#name); \
    return broken;                                       \
  }())

#else
#define WEFT_BREAK(name) false
#endif
