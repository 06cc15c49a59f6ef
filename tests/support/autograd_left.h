// Tells what a worker's distributed autograd still holds: nothing, at the end of every test.
//
// Thread safety: free functions.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "weft/dist_autograd/autograd_driver.h"

namespace weft::testing {

// Returns "" if the driver holds nothing.
inline std::string autograd_left(const dist_autograd_internal::AutogradDriver& driver) {
  const dist_autograd_internal::AutogradDriver::Gauges left = driver.gauges();
  if (left.contexts + left.passes + left.sends + left.timers == 0) return "";
  return absl::StrCat(left.contexts, " contexts, ", left.passes, " passes, ", left.sends,
                      " sends, ", left.timers, " timers");
}

}  // namespace weft::testing
