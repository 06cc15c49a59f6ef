#include <iostream>

#include <ATen/ops/ones.h>

#include "every_header.h"

int main() {
  const double sum = at::ones({2, 2}).sum().item<double>();
  std::cout << "sum of ones(2, 2): " << sum << "\n";
  return sum == 4 ? 0 : 1;
}
