#include <iostream>

#include "weft/base/status.h"

int main() {
  const absl::Status status = weft::raised_at(absl::UnavailableError("worker gone"), "trainer0");
  std::cout << status.message() << ": " << weft::worker_of(status) << "\n";
  return weft::worker_of(status) == "trainer0" ? 0 : 1;
}
