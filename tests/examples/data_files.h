// Writes a data set as files that the examples read, for tests with pictures of their own.
//
// Thread safety: free functions.
// Errors: a failure of the test.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <zlib.h>

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include "weft/examples/support/fashion_mnist.h"

namespace weft::testing {

// `values`: numbers from 0 to 255.
inline void write_idx_file(const std::filesystem::path& path, const at::Tensor& values) {
  const at::Tensor bytes = values.to(at::kByte).contiguous();
  std::string content("\0\0\x08", 3);
  content.push_back(static_cast<char>(bytes.dim()));
  for (const int64_t size : bytes.sizes()) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      content.push_back(static_cast<char>((size >> shift) & 0xFF));
    }
  }
  content.append(static_cast<const char*>(bytes.const_data_ptr()),
                 static_cast<size_t>(bytes.numel()));
  const gzFile file = ::gzopen(path.c_str(), "wb1");
  ASSERT_TRUE(file != nullptr) << path;
  EXPECT_EQ(::gzwrite(file, content.data(), static_cast<unsigned>(content.size())),
            static_cast<int>(content.size()));
  EXPECT_EQ(::gzclose(file), Z_OK) << path;
}

// `part` is "train" or "t10k".
inline void write_data_part(const std::filesystem::path& folder, const std::string& part,
                            const examples::LabelledImages& data) {
  write_idx_file(folder / (part + "-images-idx3-ubyte.gz"), data.images);
  write_idx_file(folder / (part + "-labels-idx1-ubyte.gz"), data.labels);
}

}  // namespace weft::testing
