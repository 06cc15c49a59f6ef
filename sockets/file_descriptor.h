// Owns a file descriptor and closes it exactly once.
//
// Thread safety: none. It is a plain value that can be moved.
#pragma once

#include <unistd.h>
#include <utility>

namespace weft {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      reset();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  ~FileDescriptor() { reset(); }

  bool valid() const { return number_ >= 0; }
  // -1 if there is none. This object keeps the ownership.
  int get() const { return number_; }
  // Gives the ownership to the caller.
  int release() { return std::exchange(number_, -1); }
  void reset() {
    if (valid()) ::close(std::exchange(number_, -1));
  }

 private:
  int number_ = -1;
};

}  // namespace weft
