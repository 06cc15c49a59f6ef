// Saves named tensors to one file and loads them again, in the safetensors format.
//
// Python's `safetensors` reads and writes the same files. Loading runs no code from the file and
// checks everything that the file says. It returns the whole state or an error. Saving is atomic:
// the path keeps its old content until the new content is complete and flushed to the disk.
//
// Thread safety: the functions may be called from any thread. Nobody may write to the tensors while
// they are saved.
// Blocking: file I/O on the caller's thread.
// Errors of saving: InvalidArgument (names the tensor), ResourceExhausted (disk full), NotFound (no
// such folder), PermissionDenied, Internal.
// Errors of loading: NotFound, FailedPrecondition (not a regular file), PermissionDenied, Internal,
// and DataLoss, which names the file, the tensor and the fault.
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
  TensorMap tensors;  // as loaded: on the CPU, contiguous, without gradient
  Metadata metadata;
};

// Saves dense tensors with any strides on any device, with at most 64 dimensions. The data types
// are F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL, U64, U32 and U16. The 8-bit floating-point
// types F8_E4M3 (e4m3fn), F8_E5M2 and F8_E8M0 (e8m0fnu) are possible too.
absl::Status save_tensors(const std::string& path, const TensorMap& tensors,
                          const Metadata& metadata = {},
                          const FileCalls& calls = FileCalls::system());

absl::StatusOr<StateFile> load_tensors(const std::string& path);

}  // namespace weft
