// Gives several processes of one host a block of memory whose size none of them can change.
//
// It has no name: a process that shall map it gets its descriptor (shm/local_socket.h). The kernel
// frees the memory when the last process that maps it has unmapped it or died. The size is sealed,
// so an access within it never raises SIGBUS, whatever the other processes do.
//
// The contents are not protected: each process that maps the memory may write anything at any time.
// So copy a value that must be checked into private memory first, and read it only once.
//
// Thread safety: none. It is a value that can be moved. Its users must synchronize access to the
// contents.
// Blocking: create() writes each page once.
// Errors: InvalidArgument (size 0, not sealed, or another size than announced), ResourceExhausted
// (no memory, no descriptors), Internal. Errors of a system call name the call and the reason.
// Protocol: memfd_create(2), "File sealing".
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/shm/file_descriptor.h"

namespace weft {

class SealedMemory {
 public:
  // Makes `size` bytes of zeros, at least one, rounded up to whole pages. /proc/PID/maps shows
  // `label`.
  static absl::StatusOr<SealedMemory> create(const std::string& label, size_t size);

  // Maps memory that another process has created and sent. `size` is the size in bytes that this
  // process announced. InvalidArgument: the memory has another size, or its size can still change.
  static absl::StatusOr<SealedMemory> adopt(FileDescriptor descriptor, size_t size);

  SealedMemory() = default;  // holds no memory
  SealedMemory(SealedMemory&& other) noexcept;
  SealedMemory& operator=(SealedMemory&& other) noexcept;
  ~SealedMemory();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // For sending the memory. This object keeps the ownership.
  int descriptor() const { return descriptor_.get(); }

 private:
  static absl::StatusOr<SealedMemory> map(FileDescriptor descriptor, size_t size);

  FileDescriptor descriptor_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace weft
