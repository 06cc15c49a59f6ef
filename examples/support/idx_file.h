// Reads the gzipped IDX files in which MNIST and Fashion-MNIST are published.
//
// An IDX file is a big-endian magic number (0x08 for bytes, then the number of dimensions), the
// dimensions, and the values. The reader checks the magic number, the sizes, the end of the file,
// and gzip's checksum.
//
// Thread safety: plain functions.
// Blocking: file I/O.
// Errors: NotFound or DataLoss, naming the file and the fault.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace weft::examples {

struct IdxFile {
  std::vector<int64_t> shape;
  std::vector<uint8_t> values;
};

// `dimensions`: the number of dimensions that the file must have.
absl::StatusOr<IdxFile> read_idx_file(const std::string& path, int dimensions);

}  // namespace weft::examples
