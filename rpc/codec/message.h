// The encoded values of one message: bytes, and the tensors and references that the bytes mention,
// in order.
//
// Codec<T>::encode fills a Writer, and Codec<T>::decode reads a Reader at the other end.
//
// Thread safety: none. Each object belongs to one call.
// Errors: the first error stays in `status`. A Reader does nothing after it. The user of a Writer
// or a Reader checks the status once, after the last operation.
// Wire: little-endian, without padding. Each value takes at least one byte. So a count that exceeds
// the bytes that are left is false, and is refused before anything is allocated.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "weft/base/status.h"

namespace weft {

// A reference inside a message, without its type. It keeps the reference alive; only the codec of
// RRef<T> (rref/rref.h) knows its contents.
class AnyReference {
 public:
  virtual ~AnyReference() = default;
};
using AnyReferencePtr = std::shared_ptr<AnyReference>;  // shared by all copies of the RRef

class Writer {
 public:
  void bytes(const void* data, size_t size) { body_.append(static_cast<const char*>(data), size); }
  template <class T>
  requires std::is_arithmetic_v<T>
  void scalar(T value) { bytes(&value, sizeof(value)); }
  void text(std::string_view value) {
    scalar(static_cast<uint64_t>(value.size()));
    bytes(value.data(), value.size());
  }
  // Accepts tensors of any layout, and undefined ones. Takes one byte of the body.
  void tensor(at::Tensor value) {
    scalar(uint8_t{1});
    tensors_.push_back(std::move(value));
  }
  void reference(AnyReferencePtr value) {
    scalar(uint8_t{1});
    references_.push_back(std::move(value));
  }
  void fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  const absl::Status& status() const { return status_; }
  std::string& body() { return body_; }
  std::vector<at::Tensor>& tensors() { return tensors_; }
  std::vector<AnyReferencePtr>& references() { return references_; }

 private:
  std::string body_;
  std::vector<at::Tensor> tensors_;
  std::vector<AnyReferencePtr> references_;
  absl::Status status_;
};

class Reader {
 public:
  // The greatest depth to which structs may nest.
  static constexpr int kMaxDepth = 64;
  // The memory budget of decoded containers: kFreeMemory, and kMemoryPerByte per byte of the body.
  static constexpr size_t kFreeMemory = size_t{1} << 20;
  static constexpr size_t kMemoryPerByte = 64;

  Reader() = default;
  Reader(std::string body, std::vector<at::Tensor> tensors, std::vector<AnyReferencePtr> references)
      : body_(std::move(body)), tensors_(std::move(tensors)), references_(std::move(references)) {}

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  void fail(std::string_view what) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl_view(what));
    }
  }
  size_t remaining() const { return body_.size() - position_; }

  // False, and failed, if fewer bytes are left.
  bool bytes(void* data, size_t size) {
    if (!ok() || size > remaining()) {
      fail("the message ends inside a value");
      return false;
    }
    std::memcpy(data, body_.data() + position_, size);
    position_ += size;
    return true;
  }
  template <class T>
  requires std::is_arithmetic_v<T> T scalar() {
    T value{};
    bytes(&value, sizeof(value));
    return value;
  }
  // Returns a view into the message, which is valid as long as this Reader.
  std::string_view text() {
    const uint64_t size = scalar<uint64_t>();
    if (!ok() || size > remaining()) {
      fail("a string is longer than its message");
      return {};
    }
    std::string_view view(body_.data() + position_, size);
    position_ += size;
    return view;
  }
  // Reads the number of elements that follow. Fails if fewer bytes than that are left.
  size_t count() {
    const uint64_t count = scalar<uint64_t>();
    if (!ok() || count > remaining()) {
      fail("a list claims more elements than its message has bytes");
      return 0;
    }
    return count;
  }
  at::Tensor tensor() {
    if (scalar<uint8_t>() != 1 || next_tensor_ >= tensors_.size()) {
      fail("a tensor is missing from the message");
      return {};
    }
    return std::move(tensors_[next_tensor_++]);
  }
  AnyReferencePtr reference() {
    if (scalar<uint8_t>() != 1 || next_reference_ >= references_.size()) {
      fail("a reference is missing from the message");
      return nullptr;
    }
    return std::move(references_[next_reference_++]);
  }
  // OK if nothing has failed and the whole message was read.
  absl::Status finish() {
    if (ok() && (remaining() != 0 || next_tensor_ != tensors_.size() ||
                 next_reference_ != references_.size())) {
      fail("the message holds more than its signature says");
    }
    return status_;
  }

  // Charges the budget for `count` decoded elements of `size` bytes each. False, and failed, if the
  // message would take more than its budget.
  bool charge(size_t count, size_t size) {
    const size_t budget = kFreeMemory + kMemoryPerByte * body_.size();
    if (ok() && count <= (budget - charged_) / size) {
      charged_ += count * size;
      return true;
    }
    fail("the message would take too much memory");
    return false;
  }

  bool enter() {
    if (++depth_ > kMaxDepth) fail("values nest too deeply");
    return ok();
  }
  void leave() { --depth_; }

 private:
  std::string body_;
  std::vector<at::Tensor> tensors_;
  std::vector<AnyReferencePtr> references_;
  size_t position_ = 0;
  size_t next_tensor_ = 0;
  size_t next_reference_ = 0;
  int depth_ = 0;
  size_t charged_ = 0;
  absl::Status status_;
};

}  // namespace weft
