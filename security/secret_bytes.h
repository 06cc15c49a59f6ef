// Holds a secret, such as a job's secret or a private key, in memory of its own.
//
// The memory is locked, so it does not reach the swap. It is left out of core dumps, forked
// children see zeros, and it is overwritten before it is freed. If the limit of locked memory
// (RLIMIT_MEMLOCK) is used up, the memory is not locked, and the rest holds.
//
// Thread safety: a plain value that can be moved.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

namespace weft {

class SecretBytes {
 public:
  SecretBytes() = default;
  // Zeros. Throws std::bad_alloc if there is no memory.
  explicit SecretBytes(size_t size);
  // A copy. The caller wipes the original.
  explicit SecretBytes(std::string_view content);
  SecretBytes(SecretBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  SecretBytes& operator=(SecretBytes&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~SecretBytes();

  size_t size() const { return size_; }
  std::span<unsigned char> bytes() { return {data_, size_}; }
  std::span<const unsigned char> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  // Overwrites what is beyond the first `size` bytes and forgets it.
  void shrink(size_t size);

 private:
  unsigned char* data_ = nullptr;  // whole pages
  size_t size_ = 0;
};

}  // namespace weft
