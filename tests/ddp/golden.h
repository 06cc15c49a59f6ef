// Reads the golden files of tests/ddp/golden, which hold what Python's DDP and c10d computed.
//
//   for (const nlohmann::json& test : golden_cases("gradients")) { ... test["name"] ... }
//
// tests/ddp/golden/make_golden.py explains the layout and origin of the files. This header needs
// WEFT_SOURCE_DIR, which every test target has.
//
// Thread safety: free functions.
// Errors: std::runtime_error for a missing file; nlohmann::json's own exceptions for a missing key.
#pragma once

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <torch/types.h>

namespace weft::testing {

// The cases of golden/NAME.json, in the order of the file.
inline nlohmann::json golden_cases(const std::string& name) {
  const std::string path = std::string(WEFT_SOURCE_DIR) + "/tests/ddp/golden/" + name + ".json";
  std::ifstream file(path);
  if (!file) throw std::runtime_error("no golden file " + path);
  return nlohmann::json::parse(file).at("cases");
}

// Makes a new tensor from {"shape": [...], "data": [...]}, or an undefined one where the file has
// null (Python's None). Numbers are read as double or, for integral dtypes, as int64, and then
// converted.
inline at::Tensor tensor_of(const nlohmann::json& value, at::ScalarType dtype = at::kDouble) {
  if (value.is_null()) return {};
  const auto shape = value.at("shape").get<std::vector<int64_t>>();
  const nlohmann::json& data = value.at("data");
  const at::Tensor flat = at::isIntegralType(dtype, /*includeBool=*/true)
                              ? torch::tensor(data.get<std::vector<int64_t>>(), at::kLong)
                              : torch::tensor(data.get<std::vector<double>>(), at::kDouble);
  return flat.to(dtype).reshape(shape);
}

// Looks up `key` in step `index` of a case for `rank`. Results that are equal on all ranks are
// stored once, in the case's own steps. Others are in the steps of their rank.
inline const nlohmann::json& step_value(const nlohmann::json& test, size_t rank, size_t index,
                                        const std::string& key) {
  if (const auto& shared = test.find("steps"); shared != test.end()) {
    const nlohmann::json& step = shared->at(index);
    if (const auto& found = step.find(key); found != step.end()) return *found;
  }
  return test.at("ranks").at(rank).at("steps").at(index).at(key);
}

}  // namespace weft::testing
