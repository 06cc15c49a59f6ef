// Saves named tensors to one file and loads them again, in the safetensors format.
//
// Python's `safetensors` reads and writes the same files. Loading runs no code, believes nothing in
// the file, and gives either everything or an error. Saving is atomic: until it is complete and
// flushed to the disk the path keeps its old content.
//
// Thread safety: plain functions; tensors that are being saved must not be written meanwhile.
// Blocking: file I/O on the caller's thread.
// Errors of saving: InvalidArgument (names the tensor), ResourceExhausted (disk full), NotFound (no
// such folder), Internal. Errors of loading: NotFound, FailedPrecondition (not a regular file),
// DataLoss naming the file, the tensor and the fault.
#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/checkpoint/atomic_file.h"

namespace weft {

using TensorMap = std::map<std::string, at::Tensor>;
using Metadata = std::map<std::string, std::string>;

struct StateFile {
  TensorMap tensors;  // on the CPU, contiguous, without gradient
  Metadata metadata;
};

// Dense tensors of F64, F32, F16, BF16, I64, I32, I16, I8, U8 and BOOL; any strides and device.
absl::Status save_tensors(const std::string& path, const TensorMap& tensors,
                          const Metadata& metadata = {},
                          const FileCalls& calls = FileCalls::system());

absl::StatusOr<StateFile> load_tensors(const std::string& path);

}  // namespace weft
