#include "weft/comm/same_host_backend.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/base/thread.h"
#include "weft/comm/internal/same_host_operations.h"
#include "weft/comm/internal/store_notices.h"

namespace weft {
namespace comm_internal {
namespace {

// When a backend is destroyed, it cancels work that has not moved for this long.
constexpr std::chrono::milliseconds kStill{500};

void check_timeout(std::chrono::milliseconds timeout) {
  WEFT_CHECK_ARGUMENT(timeout >= std::chrono::milliseconds::zero(),
                      absl::StrCat("a timeout is not negative: ", timeout.count(), " ms"));
}

}  // namespace

SameHostBackend::Options::Options(const SameHostOptions& options)
    : c10d::Backend::Options("weft_same_host", options.timeout), spin(options.spin) {}

SameHostBackend::SameHostBackend(std::shared_ptr<Shared> shared, const SameHostOptions& options)
    : Backend(shared->group.rank(), shared->group.size()),
      group_(shared, &shared->group),
      arenas_(shared->arenas),
      spin_(options.spin),
      timeout_(options.timeout) {}

SameHostBackend::~SameHostBackend() { shutdown(); }

c10::intrusive_ptr<c10d::Backend::Options> SameHostBackend::getBackendOptions() {
  return c10::make_intrusive<Options>(SameHostOptions{timeout_, spin_});
}

void SameHostBackend::setTimeout(Milliseconds timeout) {
  check_timeout(timeout);
  timeout_ = timeout;
}

c10d::ErrorType SameHostBackend::getError() {
  const absl::Status failure = group_->failure();
  if (failure.ok()) return c10d::ErrorType::SUCCESS;
  if (absl::IsDeadlineExceeded(failure)) return c10d::ErrorType::TIMEOUT;
  // Another rank has died, or has given up.
  if (absl::IsUnavailable(failure)) return c10d::ErrorType::REMOTE_ERROR;
  return c10d::ErrorType::COMM_ERROR;
}

void SameHostBackend::abort() { abort(absl::CancelledError("the backend was aborted")); }

void SameHostBackend::abort(absl::Status reason) { group_->abort(std::move(reason)); }

void SameHostBackend::shutdown() {
  group_->drain(kStill);
  group_->leave();
}

c10::intrusive_ptr<c10d::Backend> SameHostBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  WEFT_CHECK_ARGUMENT(
      !sorted.empty() && sorted.front() >= 0 && sorted.back() < size_ &&
          std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(),
      absl::StrCat("split: takes different ranks of ", size_, ": ", absl::StrJoin(ranks, ", ")));
  const auto me = std::find(ranks.begin(), ranks.end(), rank_);
  if (me == ranks.end()) return nullptr;
  SameHostOptions same = {timeout_, spin_};
  if (options != nullptr) same.timeout = options->timeout;
  return create_same_host_backend(store, static_cast<int>(me - ranks.begin()),
                                  static_cast<int>(ranks.size()), same);
}

at::Tensor SameHostBackend::allocateTensor(long size, at::TensorOptions options) {
  WEFT_CHECK_ARGUMENT(size >= 0, absl::StrCat("a tensor cannot have ", size, " elements"));
  WEFT_CHECK_ARGUMENT(options.device().is_cpu(), "the same-host backend allocates CPU tensors");
  const uint64_t width = c10::elementSize(c10::typeMetaToScalarType(options.dtype()));
  auto block =
      arenas_.allocate(static_cast<uint64_t>(size) * width, deadline_of(c10d::kUnsetTimeout));
  if (!block.ok()) throw_failure(block.status());
  return at::from_blob(
      block->data, {size}, [memory = block->memory](void*) {}, options);
}

SameHostBackend::WorkPtr SameHostBackend::barrier(const c10d::BarrierOptions& options) {
  Operation operation;
  operation.label = "barrier";
  return start({c10d::OpType::BARRIER, "weft:barrier", {}, options.timeout}, std::move(operation),
               DenseTensors("barrier"));
}

// The error names all late ranks, whatever `wait_all_ranks` says, because they are known here.
void SameHostBackend::monitoredBarrier(const c10d::BarrierOptions& options,
                                       bool /*wait_all_ranks*/) {
  Operation operation;
  operation.label = "monitored_barrier";
  start({c10d::OpType::BARRIER, "weft:monitored_barrier", {}, options.timeout},
        std::move(operation), DenseTensors("monitored_barrier"))
      ->wait(kNoTimeout);
}

// ---- messages

SameHostBackend::WorkPtr SameHostBackend::send(Tensors& tensors, int to, int tag) {
  check_peer("send", to);
  return transfer({c10d::OpType::SEND, "weft:send", tensors, c10d::kUnsetTimeout}, true,
                  single("send", tensors), to, tag);
}

SameHostBackend::WorkPtr SameHostBackend::recv(Tensors& tensors, int from, int tag) {
  check_peer("recv", from);
  return transfer({c10d::OpType::RECV, "weft:recv", tensors, c10d::kUnsetTimeout}, false,
                  single("recv", tensors), from, tag);
}

SameHostBackend::WorkPtr SameHostBackend::recvAnysource(Tensors& tensors, int tag) {
  return transfer({c10d::OpType::RECVANYSOURCE, "weft:recvAnySource", tensors, c10d::kUnsetTimeout},
                  false, single("recv", tensors), Channels::kAnyone, tag);
}

SameHostBackend::WorkPtr SameHostBackend::transfer(Call call, bool sends, const at::Tensor& tensor,
                                                   int peer, int tag) {
  const char* const name = sends ? "send" : "recv";
  WEFT_CHECK_ARGUMENT(tag >= 0, absl::StrCat(name, ": a tag is not negative: ", tag));
  DenseTensors dense(name);
  const at::Tensor data = sends ? dense.input(tensor) : dense.output(tensor);
  Channels::Message message;
  message.peer = peer;
  message.tag = tag;
  message.data = data_of(data);
  message.size = data.nbytes();
  message.memory = dense.memory();
  const auto deadline = deadline_of(call.timeout);
  SameHostWork::Call work = {call.type,        call.title, calls_++, {}, std::move(call.outputs),
                             dense.copy_back()};
  work.parts = {sends ? group_->send(std::move(message), deadline)
                      : group_->receive(std::move(message), deadline)};
  return c10::make_intrusive<SameHostWork>(group_, std::move(work));
}

// ---- helpers of all calls

int SameHostBackend::root_of(const char* operation, int64_t root) const {
  WEFT_CHECK_ARGUMENT(root >= 0 && root < size_, absl::StrCat(operation, ": there is no rank ",
                                                              root, " in a group of ", size_));
  return static_cast<int>(root);
}

void SameHostBackend::check_peer(const char* operation, int peer) const {
  WEFT_CHECK_ARGUMENT(
      peer >= 0 && peer < size_ && peer != rank_,
      absl::StrCat(operation, ": rank ", rank_, " of ", size_, " has no peer ", peer));
}

// A timeout of 0 means no limit, as in Gloo.
SameHostBackend::Clock::time_point SameHostBackend::deadline_of(Milliseconds timeout) const {
  if (timeout == c10d::kUnsetTimeout) timeout = timeout_;
  check_timeout(timeout);
  return end_of(timeout);
}

SameHostBackend::WorkPtr SameHostBackend::start(Call call, Operation operation,
                                                const DenseTensors& dense) {
  std::vector<Operation> operations;
  operations.push_back(std::move(operation));
  return start(std::move(call), std::move(operations), dense);
}

SameHostBackend::WorkPtr SameHostBackend::start(Call call, std::vector<Operation> operations,
                                                const DenseTensors& dense) {
  const std::shared_ptr<const void> memory = dense.memory();
  for (Operation& operation : operations) operation.memory = memory;
  return start(std::move(call), std::move(operations), dense.copy_back());
}

SameHostBackend::WorkPtr SameHostBackend::start(Call call, std::vector<Operation> operations,
                                                std::function<void()> settle) {
  const auto deadline = deadline_of(call.timeout);
  SameHostWork::Call work = {call.type,        call.title, calls_++, {}, std::move(call.outputs),
                             std::move(settle)};
  for (Operation& operation : operations) {
    work.parts.push_back(group_->start(std::move(operation), deadline));
  }
  return c10::make_intrusive<SameHostWork>(group_, std::move(work));
}

Operation SameHostBackend::moving(const char* name, const at::Tensor& tensor) const {
  Operation operation;
  operation.label = label_of(name, tensor);
  operation.shape = tensor.sizes().vec();
  if (operation.shape.size() > kMostDims) operation.shape = {tensor.numel()};
  return operation;
}

}  // namespace comm_internal

c10::intrusive_ptr<c10d::Backend> create_same_host_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    const SameHostOptions& options) {
  using comm_internal::SameHostBackend;
  WEFT_CHECK_ARGUMENT(options.timeout > std::chrono::milliseconds::zero(),
                      "same-host backend: the timeout is positive");
  WEFT_CHECK_ARGUMENT(options.spin >= std::chrono::microseconds::zero(),
                      "same-host backend: the spin is not negative");
  WEFT_CHECK_ARGUMENT(
      size >= 1 && rank >= 0 && rank < size,
      absl::StrCat("same-host backend: there is no rank ", rank, " in a group of ", size));
  comm_internal::StoreNotices notices(store);
  absl::StatusOr<std::unique_ptr<comm_internal::Mesh>> mesh =
      comm_internal::Mesh::form(rank, size, notices, comm_internal::end_of(options.timeout));
  if (!mesh.ok()) comm_internal::throw_failure(mesh.status());
  comm_internal::CollectiveGroup::Options group;
  group.spin = options.spin;
  // The last reference may go away on a thread of the group, which cannot join itself. Then another
  // thread destroys the group.
  const auto end = [](SameHostBackend::Shared* shared) {
    if (!shared->group.on_own_thread()) {
      delete shared;
      return;
    }
    absl::StatusOr<std::thread> thread =
        start_thread("the end of a process group", [shared] { delete shared; });
    if (thread.ok()) {
      thread->detach();
    } else {
      // Tell the other ranks that the group is over. Its memory stays until the process ends.
      shared->group.leave();
      log_error(thread.status().message());
    }
  };
  return c10::make_intrusive<SameHostBackend>(
      std::shared_ptr<SameHostBackend::Shared>(new SameHostBackend::Shared(*std::move(mesh), group),
                                               end),
      options);
}

}  // namespace weft
