// Gives several processes of one host a block of memory whose size none of them can change.
//
// It has no name: a process that shall map it gets its descriptor (sockets/local_socket.h). The
// kernel frees the memory when the last process that maps it has unmapped it or died. The size is
// sealed, so an access within it never raises SIGBUS, whatever the other processes do.
//
// The contents are not protected: each process that maps the memory may write anything at any time.
// So copy a value that must be checked into private memory first, and read it only once.
//
// A forked child does not have the memory, and core files do not contain it.
//
// Thread safety: it is a value that can be moved. The const methods may be called from any thread.
// Its users must synchronize access to the contents.
// Blocking: create() and adopt() fill the page tables, so that a later access takes no page fault.
// create() also writes each page once. Both together take about 0.7 ms for 1 MiB.
// Errors: InvalidArgument (size 0, not sealed, or another size than announced), ResourceExhausted
// (no memory, no descriptors), Internal. Errors of a system call name the call and the reason.
// Protocol: memfd_create(2), "File sealing".
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/sockets/file_descriptor.h"

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
  // For sending the memory. This object keeps the ownership. -1 after close_descriptor().
  int descriptor() const { return descriptor_ ? descriptor_->get() : -1; }
  // For memory that no other process needs any more. The memory stays mapped. The methods below
  // fail afterwards.
  void close_descriptor() { descriptor_.reset(); }

  // The three methods below take a part of this memory. `offset` and `size` are multiples of the
  // page size, and the part is inside the memory: InvalidArgument otherwise.

  // Maps a part once more, at another address. It shares the descriptor of this object.
  absl::StatusOr<SealedMemory> map_again(size_t offset, size_t size) const;

  // Replaces a part by a private copy at the same address. Other threads may read and write it
  // meanwhile, and no write of this process is lost. Other processes may not write it meanwhile.
  // If the result is OK, no process sees any more what this process writes there, or the reverse.
  // An error leaves some pages shared and others private. Then the caller may repeat the call, or
  // call share_again().
  absl::Status make_private(size_t offset, size_t size) const;

  // Replaces a part by the shared memory again. The contents of private pages are lost. After an
  // error the part is as before.
  absl::Status share_again(size_t offset, size_t size) const;

 private:
  static absl::StatusOr<SealedMemory> map(std::shared_ptr<const FileDescriptor> descriptor,
                                          size_t start, size_t size, int advice);
  absl::Status remap(size_t offset, size_t size, int flags) const;
  absl::Status check_part(size_t offset, size_t size) const;

  std::shared_ptr<const FileDescriptor> descriptor_;  // shared with the results of map_again()
  size_t start_ = 0;                                  // offset of data_ in the file
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace weft
