// A piece of memory that several processes of one host see, and that none can pull from under the
// others.
//
// It has no name: whoever is to see it is handed its descriptor (shm/local_socket.h), and the
// kernel frees it with the last process that maps it, however that one ends. Its size is sealed, so
// an access within it never raises SIGBUS, whatever the others do. What is *in* it is another
// matter: a process that maps it may write anything at any time, so read what must be checked once,
// into memory of your own.
//
// Thread safety: a value that moves; what the memory holds is for its users to guard.
// Blocking: create() writes each page once.
// Errors: InvalidArgument (size 0, not sealed, of another size), ResourceExhausted (no memory, no
// descriptors), Internal; all name the call and the system's reason.
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
  // `size` bytes of zeros, at least one, rounded up to whole pages. `label` is what
  // /proc/PID/maps shows.
  static absl::StatusOr<SealedMemory> create(const std::string& label, size_t size);

  // Maps what another process has created and sent. `size` is what it said: it must be what the
  // memory has, and both size and the seal on it must be fixed for ever.
  static absl::StatusOr<SealedMemory> adopt(FileDescriptor descriptor, size_t size);

  SealedMemory() = default;  // none
  SealedMemory(SealedMemory&& other) noexcept;
  SealedMemory& operator=(SealedMemory&& other) noexcept;
  ~SealedMemory();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // For sending it. Still owned by this.
  int descriptor() const { return descriptor_.get(); }

 private:
  static absl::StatusOr<SealedMemory> map(FileDescriptor descriptor, size_t size);

  FileDescriptor descriptor_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace weft
