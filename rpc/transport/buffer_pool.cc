#include "weft/rpc/transport/buffer_pool.h"

#include <bit>
#include <cstdlib>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"
#include "weft/base/status.h"

namespace weft::rpc_internal {
namespace {

// Smaller blocks come from malloc, which recycles them itself.
constexpr size_t kSmallestPooled = size_t{1} << 16;

// Rounds up, so that a block can be used again for nearly the same size. It wastes at most an
// eighth.
size_t rounded(size_t size) {
  const size_t step = std::bit_floor(size) / 8;
  return (size + step - 1) / step * step;
}

std::byte* allocate(size_t size) {
  return static_cast<std::byte*>(std::aligned_alloc(64, (size + 63) / 64 * 64));
}

}  // namespace

struct BufferPool::State {
  explicit State(size_t max) : max_idle_bytes(max) {}
  ~State() {
    for (auto& [size, block] : idle) std::free(block);
  }

  void give_back(std::byte* block, size_t size) {
    {
      MutexLock lock(mutex);
      if (!closed && idle_bytes + size <= max_idle_bytes) {
        idle.emplace(size, block);
        idle_bytes += size;
        return;
      }
    }
    std::free(block);
  }

  const size_t max_idle_bytes;
  Mutex mutex;
  std::multimap<size_t, std::byte*> idle ABSL_GUARDED_BY(mutex);
  size_t idle_bytes ABSL_GUARDED_BY(mutex) = 0;
  bool closed ABSL_GUARDED_BY(mutex) = false;
};

BufferPool::BufferPool(size_t max_idle_bytes) : state_(std::make_shared<State>(max_idle_bytes)) {}

BufferPool::~BufferPool() {
  MutexLock lock(state_->mutex);
  state_->closed = true;
}

absl::StatusOr<Payload> BufferPool::try_take(size_t size) {
  Payload payload = take(size);
  if (payload.data != nullptr) return payload;
  return absl::ResourceExhaustedError(absl::StrCat("no memory for a payload of ", size, " bytes"));
}

absl::Status BufferPool::fill(Frame& frame) {
  for (Payload& payload : frame.payloads) {
    WEFT_ASSIGN_OR_RETURN(payload, try_take(payload.size));
  }
  return absl::OkStatus();
}

Payload BufferPool::take(size_t size) {
  if (size < kSmallestPooled) {
    std::byte* block = allocate(size == 0 ? 1 : size);
    if (block == nullptr) return {};
    return {block, size, std::shared_ptr<void>(block, [](void* p) { std::free(p); })};
  }
  const size_t capacity = rounded(size);
  std::byte* block = nullptr;
  {
    MutexLock lock(state_->mutex);
    auto found = state_->idle.find(capacity);
    if (found != state_->idle.end()) {
      block = found->second;
      state_->idle_bytes -= capacity;
      state_->idle.erase(found);
    }
  }
  if (block == nullptr) block = allocate(capacity);
  if (block == nullptr) return {};
  return {block, size, std::shared_ptr<void>(block, [state = state_, capacity](void* p) {
            state->give_back(static_cast<std::byte*>(p), capacity);
          })};
}

size_t BufferPool::idle_bytes() const {
  MutexLock lock(state_->mutex);
  return state_->idle_bytes;
}

}  // namespace weft::rpc_internal
