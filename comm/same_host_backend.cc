#include "weft/comm/same_host_backend.h"

#define XXH_INLINE_ALL

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#include <xxhash.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status.h"
#include "weft/comm/internal/arenas.h"
#include "weft/comm/internal/collective_group.h"
#include "weft/comm/internal/reduce_kernels.h"

namespace weft {
namespace {

using c10d::OpType;
using internal::CollectiveGroup;
using internal::Lanes;
using internal::Operation;
using internal::Reduction;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Tensors = std::vector<at::Tensor>;

// ---- arguments

[[noreturn]] void refuse(const std::string& what) { C10_THROW_ERROR(ValueError, what); }

// The text is made only where it is needed.
#define WEFT_CHECK_ARGUMENT(holds, ...) \
  do {                                  \
    if (!(holds)) refuse(__VA_ARGS__);  \
  } while (false)

[[noreturn]] void throw_failure(const absl::Status& status) {
  C10_THROW_ERROR(DistBackendError, std::string(status.message()));
}

void check_tensor(const std::string& operation, const at::Tensor& tensor) {
  WEFT_CHECK_ARGUMENT(tensor.defined(), absl::StrCat(operation, ": a tensor is undefined"));
  WEFT_CHECK_ARGUMENT(tensor.layout() == at::kStrided && tensor.device().is_cpu(),
                      absl::StrCat(operation, ": takes strided CPU tensors, not ",
                                   c10::str(tensor.layout(), " ones on ", tensor.device())));
  WEFT_CHECK_ARGUMENT(!tensor.is_conj() && !tensor.is_neg(),
                      absl::StrCat(operation,
                                   ": a tensor is a lazy view (conj or neg): call "
                                   "resolve_conj() or resolve_neg()"));
  WEFT_CHECK_ARGUMENT(tensor.is_non_overlapping_and_dense(),
                      absl::StrCat(operation, ": a tensor of shape ", c10::str(tensor.sizes()),
                                   " has gaps or overlaps (strides ", c10::str(tensor.strides()),
                                   "): call contiguous()"));
}

const at::Tensor& single(const std::string& operation, const Tensors& tensors) {
  WEFT_CHECK_ARGUMENT(tensors.size() == 1,
                      absl::StrCat(operation, ": takes one tensor, not ", tensors.size()));
  check_tensor(operation, tensors[0]);
  return tensors[0];
}

void check_like(const std::string& operation, const at::Tensor& one, const at::Tensor& other) {
  check_tensor(operation, other);
  WEFT_CHECK_ARGUMENT(
      one.scalar_type() == other.scalar_type() && one.sizes() == other.sizes() &&
          (one.strides() == other.strides() || (one.is_contiguous() && other.is_contiguous())),
      absl::StrCat(
          operation, ": tensors differ: ",
          c10::str(one.scalar_type(), one.sizes(), " with strides ", one.strides(), " and ",
                   other.scalar_type(), other.sizes(), " with strides ", other.strides())));
}

// 0, and what no clock can count: never.
Clock::time_point end_of(milliseconds timeout) {
  const auto now = Clock::now();
  if (timeout == kNoTimeout || timeout > Clock::time_point::max() - now) {
    return Clock::time_point::max();
  }
  return now + timeout;
}

std::byte* data_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }
Operation::Part part_of(const at::Tensor& tensor) { return {data_of(tensor), tensor.nbytes()}; }

void copy_tensor(const at::Tensor& from, const at::Tensor& to) {
  if (from.nbytes() > 0 && data_of(from) != data_of(to)) {
    std::memcpy(data_of(to), data_of(from), from.nbytes());
  }
}

// Elsewhere than at `own`, where a rank's own part may lie.
void check_apart(const std::string& operation, const at::Tensor& input, const at::Tensor& output,
                 const std::byte* own = nullptr) {
  const std::byte *in = data_of(input), *out = data_of(output);
  if (input.nbytes() == 0 || output.nbytes() == 0 || (own != nullptr && in == own)) return;
  const std::less<const std::byte*> before;
  WEFT_CHECK_ARGUMENT(!before(in, out + output.nbytes()) || !before(out, in + input.nbytes()),
                      absl::StrCat(operation, ": input and output overlap"));
}

// What must be equal on all ranks beside the first tensor's shape.
uint64_t fingerprint_of(const Tensors& tensors) {
  std::vector<int64_t> all;
  for (const at::Tensor& tensor : tensors) {
    all.push_back(static_cast<int64_t>(tensor.scalar_type()));
    all.push_back(tensor.dim());
    all.insert(all.end(), tensor.sizes().begin(), tensor.sizes().end());
    if (tensor.is_contiguous()) continue;
    all.insert(all.end(), tensor.strides().begin(), tensor.strides().end());
  }
  return XXH3_64bits(all.data(), all.size() * sizeof(int64_t)) | 1;
}

Reduction reduction_of(const std::string& operation, const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return Reduction::kSum;
    case c10d::ReduceOp::AVG:
      return Reduction::kAverage;
    case c10d::ReduceOp::PRODUCT:
      return Reduction::kProduct;
    case c10d::ReduceOp::MIN:
      return Reduction::kMin;
    case c10d::ReduceOp::MAX:
      return Reduction::kMax;
    case c10d::ReduceOp::BAND:
      return Reduction::kBitAnd;
    case c10d::ReduceOp::BOR:
      return Reduction::kBitOr;
    case c10d::ReduceOp::BXOR:
      return Reduction::kBitXor;
    default:
      refuse(absl::StrCat(operation, ": this reduction is not supported"));
  }
}

// "all_reduce(sum, Float)", and for what is not contiguous, how it lies.
std::string label_of(const std::string& operation, const at::Tensor& tensor,
                     std::optional<Reduction> reduction = std::nullopt) {
  std::string label = absl::StrCat(
      operation, "(", reduction.has_value() ? std::string(to_string(*reduction)) + ", " : "",
      c10::toString(tensor.scalar_type()), ")");
  if (!tensor.is_contiguous()) absl::StrAppend(&label, c10::str(" strides ", tensor.strides()));
  return label;
}

void use_kernel(Operation& operation, const std::string& name, Reduction reduction,
                const at::Tensor& tensor) {
  const auto kernel = internal::reduce_kernel(reduction, tensor.scalar_type());
  if (!kernel.ok()) refuse(absl::StrCat(name, ": ", std::string(kernel.status().message())));
  operation.kernel = *kernel;
  operation.element_bytes = tensor.element_size();
}

void keep(Operation& operation, Tensors tensors) {
  operation.memory = std::make_shared<const Tensors>(std::move(tensors));
}

// What backend and work share.
struct Ranks {
  Ranks(std::shared_ptr<internal::Mesh> mesh, CollectiveGroup::Options options)
      : arenas(mesh), group(mesh, [&] {
          options.arenas = &arenas;
          return options;
        }()) {}

  internal::Arenas arenas;
  CollectiveGroup group;  // ends first
};

// ---- work

class SameHostWork : public c10d::Work {
 public:
  using Parts = std::vector<std::shared_ptr<CollectiveGroup::Work>>;

  SameHostWork(std::shared_ptr<CollectiveGroup> group, int rank, OpType type, Parts parts,
               Tensors outputs, uint64_t number)
      : Work(rank, type),
        group_(std::move(group)),
        parts_(std::move(parts)),
        outputs_(std::move(outputs)),
        number_(number) {}

  bool isCompleted() override {
    return std::all_of(parts_.begin(), parts_.end(), [](const auto& one) { return one->done(); });
  }
  bool isSuccess() const override {
    return std::all_of(parts_.begin(), parts_.end(),
                       [](const auto& one) { return one->done() && one->status().ok(); });
  }
  std::exception_ptr exception() const override {
    for (const auto& one : parts_) {
      if (!one->done() || one->status().ok()) continue;
      try {
        throw_failure(one->status());
      } catch (...) {
        return std::current_exception();
      }
    }
    return nullptr;
  }
  bool wait(milliseconds timeout) override {
    const auto deadline = end_of(timeout);
    for (const auto& one : parts_) {
      const absl::Status status = group_->wait(one, deadline);
      if (status.ok()) continue;
      if (isCompleted()) complete_future();
      throw_failure(status);
    }
    complete_future();
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  void abort() override { group_->abort(absl::CancelledError("work was aborted")); }
  Tensors result() override { return outputs_; }
  int sourceRank() const override { return parts_.empty() ? -1 : parts_.back()->peer(); }
  uint64_t getSequencenumber() const override { return number_; }

  // One for all who ask; complete when wait() has returned.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    std::shared_ptr<Promised> promised;
    {
      const std::lock_guard lock(mutex_);
      if (promised_ != nullptr) return promised_->future;
      promised = promised_ = std::make_shared<Promised>(parts_, outputs_);
    }
    if (parts_.empty()) promised->complete();
    for (const auto& one : parts_) {
      group_->when_done(one, [promised] {
        if (promised->left.fetch_sub(1) == 1) promised->complete();
      });
    }
    return promised->future;
  }

 private:
  // Shared by the work, which may end first, and by whoever completes it.
  struct Promised {
    Promised(Parts parts, Tensors outputs)
        : parts(std::move(parts)), outputs(std::move(outputs)), left(this->parts.size()) {}
    void complete() {
      std::call_once(once, [this] {
        for (const auto& one : parts) {
          if (one->status().ok()) continue;
          try {
            throw_failure(one->status());
          } catch (...) {
            return future->setError(std::current_exception());
          }
        }
        future->markCompleted(c10::IValue(outputs));
      });
    }

    const c10::intrusive_ptr<c10::ivalue::Future> future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    const Parts parts;
    const Tensors outputs;
    std::atomic<size_t> left;
    std::once_flag once;
  };

  void complete_future() {
    std::shared_ptr<Promised> promised;
    {
      const std::lock_guard lock(mutex_);
      promised = promised_;
    }
    if (promised != nullptr) promised->complete();
  }

  const std::shared_ptr<CollectiveGroup> group_;  // outlives its backend for this
  const Parts parts_;
  const Tensors outputs_;
  const uint64_t number_;
  std::shared_ptr<Promised> promised_;  // once somebody asked; under mutex_
};

// ---- the store as a noticeboard

class StoreNotices : public internal::Noticeboard {
 public:
  explicit StoreNotices(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  absl::Status post(int rank, const std::string& text) override {
    return guarded([&] { store_->set(key(rank), std::vector<uint8_t>(text.begin(), text.end())); });
  }
  absl::StatusOr<std::string> read(int rank, TimePoint deadline) override {
    std::string text;
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    if (left <= milliseconds::zero()) return absl::DeadlineExceededError("no time left");
    WEFT_RETURN_IF_ERROR(guarded([&] {
      store_->wait({key(rank)}, left);
      const std::vector<uint8_t> bytes = store_->get(key(rank));
      text.assign(bytes.begin(), bytes.end());
    }));
    return text;
  }

 private:
  static std::string key(int rank) { return absl::StrCat("weft/same_host/", rank); }
  template <class Call>
  static absl::Status guarded(Call call) {
    try {
      call();
      return absl::OkStatus();
    } catch (const std::exception& failed) {
      return absl::UnavailableError(absl::StrCat("rendezvous store: ", failed.what()));
    }
  }

  const c10::intrusive_ptr<c10d::Store> store_;
};

// ---- the backend

class SameHostBackend : public c10d::Backend {
 public:
  SameHostBackend(std::shared_ptr<Ranks> ranks, milliseconds timeout)
      : Backend(ranks->group.rank(), ranks->group.size()),
        group_(ranks, &ranks->group),
        arenas_(ranks->arenas),
        timeout_(timeout) {}
  ~SameHostBackend() override { shutdown(); }

  const std::string getBackendName() const override { return "weft_same_host"; }
  void setTimeout(milliseconds timeout) override { timeout_ = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return calls_; }
  c10d::ErrorType getError() override {
    const absl::Status failure = group_->failure();
    if (failure.ok()) return c10d::ErrorType::SUCCESS;
    return absl::IsDeadlineExceeded(failure) ? c10d::ErrorType::TIMEOUT
                                             : c10d::ErrorType::COMM_ERROR;
  }
  void abort() override { group_->abort(absl::CancelledError("the backend was aborted")); }
  void shutdown() override { group_->abort(absl::CancelledError("the rank has left the group")); }

  // What lies in such tensors is reduced in place.
  bool supportsTensorAlloc(c10::DeviceIndex index) override { return index < 0; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    WEFT_CHECK_ARGUMENT(size >= 0, absl::StrCat("a tensor cannot have ", size, " elements"));
    WEFT_CHECK_ARGUMENT(options.device().is_cpu(), "the same-host backend allocates CPU tensors");
    const uint64_t width = c10::elementSize(c10::typeMetaToScalarType(options.dtype()));
    auto block =
        arenas_.allocate(static_cast<uint64_t>(size) * width, deadline_of(c10d::kUnsetTimeout));
    if (!block.ok()) throw_failure(block.status());
    return at::from_blob(
        block->data, {size}, [memory = block->memory](void*) {}, options);
  }

  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors,
                                           const c10d::AllreduceOptions& options) override {
    const at::Tensor& tensor = single("all_reduce", tensors);
    const Reduction reduction = reduction_of("all_reduce", options.reduceOp);
    Operation operation = reducing("all_reduce", reduction, tensor);
    operation.sum = Operation::Sum::kEverywhere;
    keep(operation, tensors);
    return start(OpType::ALLREDUCE, std::move(operation), tensors, options.timeout);
  }

  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    const char* const name = "all_reduce_coalesced";
    WEFT_CHECK_ARGUMENT(!tensors.empty(), absl::StrCat(name, ": takes at least one tensor"));
    const Reduction reduction = reduction_of(name, options.reduceOp);
    Operation operation = reducing(name, reduction, tensors[0]);
    operation.shape = {static_cast<int64_t>(tensors.size())};
    operation.parts.clear();
    operation.resident.reset();
    for (const at::Tensor& tensor : tensors) {
      check_tensor(name, tensor);
      WEFT_CHECK_ARGUMENT(tensor.scalar_type() == tensors[0].scalar_type(),
                          absl::StrCat(name, ": all tensors have one type"));
      operation.parts.push_back(part_of(tensor));
      if (operation.shape.size() < internal::kMostDims) operation.shape.push_back(tensor.numel());
    }
    operation.fingerprint = fingerprint_of(tensors);
    operation.sum = Operation::Sum::kEverywhere;
    keep(operation, tensors);
    return start(OpType::ALLREDUCE_COALESCED, std::move(operation), tensors, options.timeout);
  }

  c10::intrusive_ptr<c10d::Work> reduce(Tensors& tensors,
                                        const c10d::ReduceOptions& options) override {
    const at::Tensor& tensor = single("reduce", tensors);
    const int root = root_of("reduce", options.rootRank);
    Operation operation = reducing("reduce", reduction_of("reduce", options.reduceOp), tensor);
    operation.root = root;
    operation.sum = Operation::Sum::kHere;
    if (rank_ == root) {
      operation.count = static_cast<uint64_t>(tensor.numel());
      operation.sum_to = data_of(tensor);
    }
    keep(operation, tensors);
    return start(OpType::REDUCE, std::move(operation), tensors, options.timeout);
  }

  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& tensors,
                                           const c10d::BroadcastOptions& options) override {
    const at::Tensor& tensor = single("broadcast", tensors);
    Operation operation = moving("broadcast", tensor);
    operation.root = root_of("broadcast", options.rootRank);
    if (rank_ == operation.root) {
      operation.parts = {part_of(tensor)};
      operation.resident = arenas_.find(data_of(tensor), tensor.nbytes());
    } else {
      operation.pulls = {{operation.root, 0, tensor.nbytes(), data_of(tensor)}};
    }
    keep(operation, tensors);
    return start(OpType::BROADCAST, std::move(operation), tensors, options.timeout);
  }

  c10::intrusive_ptr<c10d::Work> allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& options) override {
    WEFT_CHECK_ARGUMENT(outputs.size() == 1, "all_gather: takes one list of outputs");
    return gather_all(OpType::ALLGATHER, "all_gather", outputs, {single("all_gather", inputs)},
                      options.timeout);
  }
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(
      std::vector<Tensors>& outputs, Tensors& inputs,
      const c10d::AllgatherOptions& options) override {
    return gather_all(OpType::ALLGATHER_COALESCED, "all_gather_coalesced", outputs, inputs,
                      options.timeout);
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    Tensors outputs = {output}, inputs = {input};
    return gather_into(OpType::_ALLGATHER_BASE, outputs, inputs, options.timeout);
  }
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return gather_into(OpType::COALESCED, outputs, inputs, options.timeout);
  }

  c10::intrusive_ptr<c10d::Work> gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                        const c10d::GatherOptions& options) override {
    const at::Tensor& input = single("gather", inputs);
    Operation operation = moving("gather", input);
    operation.root = root_of("gather", options.rootRank);
    Tensors all = inputs, results;
    if (rank_ == operation.root) {
      WEFT_CHECK_ARGUMENT(outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_),
                          absl::StrCat("gather: the root takes one list of ", size_, " outputs"));
      results = outputs[0];
      take_from_all(operation, "gather", results, input, 0);
    } else {
      WEFT_CHECK_ARGUMENT(outputs.empty(), "gather: only the root has outputs");
      operation.parts = {part_of(input)};
    }
    all.insert(all.end(), results.begin(), results.end());
    keep(operation, std::move(all));
    return start(OpType::GATHER, std::move(operation), std::move(results), options.timeout);
  }

  c10::intrusive_ptr<c10d::Work> scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ScatterOptions& options) override {
    const at::Tensor& output = single("scatter", outputs);
    Operation operation = moving("scatter", output);
    operation.root = root_of("scatter", options.rootRank);
    Tensors all = outputs;
    if (rank_ == operation.root) {
      WEFT_CHECK_ARGUMENT(inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(size_),
                          absl::StrCat("scatter: the root takes one list of ", size_, " inputs"));
      for (const at::Tensor& input : inputs[0]) {
        check_like("scatter", output, input);
        operation.parts.push_back(part_of(input));
        all.push_back(input);
      }
      copy_tensor(inputs[0][rank_], output);
    } else {
      WEFT_CHECK_ARGUMENT(inputs.empty(), "scatter: only the root has inputs");
      const uint64_t size = output.nbytes();
      operation.pulls = {
          {operation.root, size * static_cast<uint64_t>(rank_), size, data_of(output)}};
    }
    keep(operation, std::move(all));
    return start(OpType::SCATTER, std::move(operation), outputs, options.timeout);
  }

  c10::intrusive_ptr<c10d::Work> reduce_scatter(
      Tensors& outputs, std::vector<Tensors>& inputs,
      const c10d::ReduceScatterOptions& options) override {
    const at::Tensor& output = single("reduce_scatter", outputs);
    WEFT_CHECK_ARGUMENT(inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(size_),
                        absl::StrCat("reduce_scatter: takes one list of ", size_, " inputs"));
    const Reduction reduction = reduction_of("reduce_scatter", options.reduceOp);
    Operation operation = reducing("reduce_scatter", reduction, output);
    operation.shape.clear();  // each rank's part may have a size of its own
    operation.parts.clear();
    operation.resident.reset();
    operation.sum = Operation::Sum::kHere;
    for (int other = 0; other < size_; ++other) {
      const at::Tensor& input = inputs[0][other];
      check_tensor("reduce_scatter", input);
      WEFT_CHECK_ARGUMENT(input.scalar_type() == output.scalar_type(),
                          "reduce_scatter: all tensors have one type");
      if (other < rank_) operation.first += static_cast<uint64_t>(input.numel());
      operation.parts.push_back(part_of(input));
      if (operation.shape.size() < internal::kMostDims) operation.shape.push_back(input.numel());
    }
    check_like("reduce_scatter", output, inputs[0][rank_]);
    for (int other = 0; other < size_; ++other) {
      check_apart("reduce_scatter", inputs[0][other], output,
                  other == rank_ ? data_of(output) : nullptr);
    }
    operation.fingerprint = fingerprint_of(inputs[0]);
    operation.count = static_cast<uint64_t>(output.numel());
    operation.sum_to = data_of(output);
    Tensors all = inputs[0];
    all.push_back(output);
    keep(operation, std::move(all));
    return start(OpType::REDUCE_SCATTER, std::move(operation), outputs, options.timeout);
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    Tensors outputs = {output}, inputs = {input};
    return scatter_sums(OpType::_REDUCE_SCATTER_BASE, outputs, inputs, options);
  }
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    return scatter_sums(OpType::COALESCED, outputs, inputs, options);
  }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override {
    check_tensor("all_to_all", input);
    check_tensor("all_to_all", output);
    WEFT_CHECK_ARGUMENT(input.is_contiguous() && output.is_contiguous() &&
                            input.scalar_type() == output.scalar_type(),
                        "all_to_all: takes contiguous tensors of one type");
    check_apart("all_to_all", input, output);
    Operation operation = moving("all_to_all", input);
    operation.shape.clear();  // the ranks' own
    operation.parts = {part_of(input)};
    operation.shares = shares_of("input", input, input_splits);
    const std::vector<uint64_t> taken = shares_of("output", output, output_splits);
    WEFT_CHECK_ARGUMENT(taken[rank_] == operation.shares[rank_],
                        absl::StrCat("all_to_all: rank ", rank_, " sends itself ",
                                     operation.shares[rank_], " bytes and takes ", taken[rank_]));
    uint64_t at = 0;
    for (int other = 0; other < size_; ++other) {
      std::byte* to = data_of(output) + at;
      if (other != rank_) {
        operation.pulls.push_back({other, 0, taken[other], to, true});
      } else if (taken[other] > 0) {
        uint64_t begin = 0;
        for (int before = 0; before < rank_; ++before) begin += operation.shares[before];
        std::memcpy(to, data_of(input) + begin, taken[other]);
      }
      at += taken[other];
    }
    keep(operation, {input, output});
    return start(OpType::ALLTOALL_BASE, std::move(operation), {output}, options.timeout);
  }
  c10::intrusive_ptr<c10d::Work> alltoall(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllToAllOptions& options) override {
    WEFT_CHECK_ARGUMENT(
        outputs.size() == static_cast<size_t>(size_) && inputs.size() == outputs.size(),
        absl::StrCat("all_to_all: takes ", size_, " inputs and as many outputs"));
    check_tensor("all_to_all", inputs[0]);
    Operation operation = moving("all_to_all", inputs[0]);
    operation.shape.clear();
    for (int other = 0; other < size_; ++other) {
      check_tensor("all_to_all", inputs[other]);
      check_tensor("all_to_all", outputs[other]);
      WEFT_CHECK_ARGUMENT(inputs[other].scalar_type() == inputs[0].scalar_type() &&
                              outputs[other].scalar_type() == inputs[0].scalar_type(),
                          "all_to_all: all tensors have one type");
      operation.parts.push_back(part_of(inputs[other]));
      operation.shares.push_back(inputs[other].nbytes());
      if (other == rank_) {
        check_like("all_to_all", inputs[other], outputs[other]);
        copy_tensor(inputs[other], outputs[other]);
      } else {
        operation.pulls.push_back(
            {other, 0, outputs[other].nbytes(), data_of(outputs[other]), true});
      }
    }
    Tensors all = inputs;
    all.insert(all.end(), outputs.begin(), outputs.end());
    keep(operation, std::move(all));
    return start(OpType::ALLTOALL, std::move(operation), outputs, options.timeout);
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    Operation operation;
    operation.label = "barrier";
    return start(OpType::BARRIER, std::move(operation), {}, options.timeout);
  }
  // All ranks that are late are named, whatever `wait_all_ranks` says: they are known here.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_all_ranks*/) override {
    Operation operation;
    operation.label = "monitored_barrier";
    start(OpType::BARRIER, std::move(operation), {}, options.timeout)->wait(kNoTimeout);
  }

  c10::intrusive_ptr<c10d::Work> send(Tensors& tensors, int to, int tag) override {
    check_peer("send", to);
    return transfer(OpType::SEND, true, tensors, to, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(Tensors& tensors, int from, int tag) override {
    check_peer("recv", from);
    return transfer(OpType::RECV, false, tensors, from, tag);
  }
  c10::intrusive_ptr<c10d::Work> recvAnysource(Tensors& tensors, int tag) override {
    return transfer(OpType::RECVANYSOURCE, false, tensors, Lanes::kAnyone, tag);
  }

 private:
  int root_of(const char* operation, int64_t root) const {
    WEFT_CHECK_ARGUMENT(root >= 0 && root < size_, absl::StrCat(operation, ": there is no rank ",
                                                                root, " in a group of ", size_));
    return static_cast<int>(root);
  }
  void check_peer(const char* operation, int peer) const {
    WEFT_CHECK_ARGUMENT(
        peer >= 0 && peer < size_ && peer != rank_,
        absl::StrCat(operation, ": rank ", rank_, " of ", size_, " has no peer ", peer));
  }

  Operation moving(const char* name, const at::Tensor& tensor) const {
    Operation operation;
    operation.label = label_of(name, tensor);
    operation.shape = tensor.sizes().vec();
    if (operation.shape.size() > internal::kMostDims) operation.shape = {tensor.numel()};
    return operation;
  }
  Operation reducing(const char* name, Reduction reduction, const at::Tensor& tensor) const {
    Operation operation = moving(name, tensor);
    operation.label = label_of(name, tensor, reduction);
    use_kernel(operation, name, reduction, tensor);
    operation.parts = {part_of(tensor)};
    if (tensor.nbytes() > internal::kSlotBytes) {
      operation.resident = arenas_.find(data_of(tensor), tensor.nbytes());
    }
    return operation;
  }

  // The inputs of all ranks, each to one output: outputs[i] is of inputs[i].
  void take_from_all(Operation& operation, const char* name, const Tensors& outputs,
                     const at::Tensor& input, uint64_t offset) const {
    for (int other = 0; other < size_; ++other) {
      check_like(name, input, outputs[other]);
      if (other == rank_) {
        copy_tensor(input, outputs[other]);
      } else {
        operation.pulls.push_back({other, offset, input.nbytes(), data_of(outputs[other])});
      }
    }
  }
  c10::intrusive_ptr<c10d::Work> gather_all(OpType type, const char* name,
                                            const std::vector<Tensors>& outputs,
                                            const Tensors& inputs, milliseconds timeout) {
    WEFT_CHECK_ARGUMENT(!inputs.empty() && outputs.size() == inputs.size(),
                        absl::StrCat(name, ": takes as many lists of outputs as inputs"));
    check_tensor(name, inputs[0]);
    Operation operation = moving(name, inputs[0]);
    Tensors all = inputs, results;
    uint64_t offset = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      check_tensor(name, inputs[i]);
      WEFT_CHECK_ARGUMENT(outputs[i].size() == static_cast<size_t>(size_),
                          absl::StrCat(name, ": takes ", size_, " outputs for each input"));
      operation.parts.push_back(part_of(inputs[i]));
      take_from_all(operation, name, outputs[i], inputs[i], offset);
      offset += inputs[i].nbytes();
      results.insert(results.end(), outputs[i].begin(), outputs[i].end());
    }
    if (inputs.size() > 1) operation.fingerprint = fingerprint_of(inputs);
    all.insert(all.end(), results.begin(), results.end());
    keep(operation, std::move(all));
    return start(type, std::move(operation), std::move(results), timeout);
  }
  c10::intrusive_ptr<c10d::Work> gather_into(OpType type, const Tensors& outputs,
                                             const Tensors& inputs, milliseconds timeout) {
    const char* const name = "all_gather_into_tensor";
    WEFT_CHECK_ARGUMENT(!inputs.empty() && outputs.size() == inputs.size(),
                        absl::StrCat(name, ": takes as many outputs as inputs"));
    check_tensor(name, inputs[0]);
    Operation operation = moving(name, inputs[0]);
    Tensors all = inputs;
    uint64_t offset = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const at::Tensor &input = inputs[i], &output = outputs[i];
      check_tensor(name, input);
      check_tensor(name, output);
      WEFT_CHECK_ARGUMENT(
          input.is_contiguous() && output.is_contiguous() &&
              input.scalar_type() == output.scalar_type() &&
              output.numel() == input.numel() * size_,
          absl::StrCat(name, ": the output is contiguous and has ", size_, " times ", input.numel(),
                       " elements of ", c10::toString(input.scalar_type())));
      const uint64_t size = input.nbytes();
      check_apart(name, input, output, data_of(output) + size * static_cast<uint64_t>(rank_));
      for (int other = 0; other < size_; ++other) {
        std::byte* to = data_of(output) + size * static_cast<uint64_t>(other);
        if (other != rank_) {
          operation.pulls.push_back({other, offset, size, to});
        } else if (size > 0 && to != data_of(input)) {
          std::memcpy(to, data_of(input), size);
        }
      }
      operation.parts.push_back(part_of(input));
      offset += size;
    }
    if (inputs.size() > 1) operation.fingerprint = fingerprint_of(inputs);
    all.insert(all.end(), outputs.begin(), outputs.end());
    keep(operation, std::move(all));
    return start(type, std::move(operation), outputs, timeout);
  }
  c10::intrusive_ptr<c10d::Work> scatter_sums(OpType type, const Tensors& outputs,
                                              const Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) {
    const char* const name = "reduce_scatter_tensor";
    WEFT_CHECK_ARGUMENT(!inputs.empty() && outputs.size() == inputs.size(),
                        absl::StrCat(name, ": takes as many outputs as inputs"));
    const Reduction reduction = reduction_of(name, options.reduceOp);
    std::vector<Operation> operations;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const at::Tensor &input = inputs[i], &output = outputs[i];
      check_tensor(name, input);
      check_tensor(name, output);
      WEFT_CHECK_ARGUMENT(
          input.is_contiguous() && output.is_contiguous() &&
              input.scalar_type() == output.scalar_type() &&
              input.numel() == output.numel() * size_,
          absl::StrCat(name, ": the input is contiguous and has ", size_, " times ", output.numel(),
                       " elements of ", c10::toString(output.scalar_type())));
      Operation operation = reducing(name, reduction, input);
      operation.sum = Operation::Sum::kHere;
      operation.count = static_cast<uint64_t>(output.numel());
      operation.first = operation.count * static_cast<uint64_t>(rank_);
      operation.sum_to = data_of(output);
      check_apart(name, input, output);
      keep(operation, {input, output});
      operations.push_back(std::move(operation));
    }
    const auto deadline = deadline_of(options.timeout);
    SameHostWork::Parts parts;
    for (Operation& operation : operations) {
      parts.push_back(group_->start(std::move(operation), deadline));
    }
    return work_of(type, std::move(parts), outputs);
  }

  // Bytes for each rank; no splits: equal ones.
  std::vector<uint64_t> shares_of(const char* which, const at::Tensor& tensor,
                                  const std::vector<int64_t>& splits) const {
    const auto ranks = static_cast<uint64_t>(size_);
    const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    if (splits.empty()) {
      WEFT_CHECK_ARGUMENT(rows % size_ == 0,
                          absl::StrCat("all_to_all: the ", which, " has ", rows, " rows, which ",
                                       size_, " ranks cannot share"));
      return std::vector<uint64_t>(ranks, tensor.nbytes() / ranks);
    }
    WEFT_CHECK_ARGUMENT(splits.size() == ranks,
                        absl::StrCat("all_to_all: ", which, " splits are for ", splits.size(),
                                     " ranks, not ", size_));
    int64_t sum = 0;
    for (const int64_t split : splits) {
      WEFT_CHECK_ARGUMENT(split >= 0 && split <= rows - sum,
                          absl::StrCat("all_to_all: ", which, " splits do not fit ", rows,
                                       " rows: ", absl::StrJoin(splits, ", ")));
      sum += split;
    }
    WEFT_CHECK_ARGUMENT(sum == rows, absl::StrCat("all_to_all: ", which, " splits are of ", sum,
                                                  " rows, not ", rows));
    std::vector<uint64_t> shares;
    const uint64_t row = rows == 0 ? 0 : tensor.nbytes() / static_cast<uint64_t>(rows);
    for (const int64_t split : splits) shares.push_back(static_cast<uint64_t>(split) * row);
    return shares;
  }

  // 0, as in Gloo: without a limit.
  Clock::time_point deadline_of(milliseconds timeout) const {
    if (timeout == c10d::kUnsetTimeout) timeout = timeout_;
    WEFT_CHECK_ARGUMENT(timeout >= milliseconds::zero(),
                        absl::StrCat("a timeout is not negative: ", timeout.count(), " ms"));
    return end_of(timeout);
  }
  c10::intrusive_ptr<c10d::Work> start(OpType type, Operation operation, Tensors outputs,
                                       milliseconds timeout) {
    SameHostWork::Parts parts = {group_->start(std::move(operation), deadline_of(timeout))};
    return work_of(type, std::move(parts), std::move(outputs));
  }
  c10::intrusive_ptr<c10d::Work> transfer(OpType type, bool sends, Tensors& tensors, int peer,
                                          int tag) {
    const char* const name = sends ? "send" : "recv";
    const at::Tensor& tensor = single(name, tensors);
    WEFT_CHECK_ARGUMENT(tag >= 0, absl::StrCat(name, ": a tag is not negative: ", tag));
    Lanes::Message message;
    message.peer = peer;
    message.tag = tag;
    message.data = data_of(tensor);
    message.size = tensor.nbytes();
    message.memory = std::make_shared<const Tensors>(tensors);
    const auto deadline = deadline_of(c10d::kUnsetTimeout);
    SameHostWork::Parts parts = {sends ? group_->send(std::move(message), deadline)
                                       : group_->receive(std::move(message), deadline)};
    return work_of(type, std::move(parts), tensors);
  }
  c10::intrusive_ptr<c10d::Work> work_of(OpType type, SameHostWork::Parts parts, Tensors outputs) {
    return c10::make_intrusive<SameHostWork>(group_, rank_, type, std::move(parts),
                                             std::move(outputs), calls_++);
  }

  const std::shared_ptr<CollectiveGroup> group_;  // shared with work that outlives this
  internal::Arenas& arenas_;                      // of the same Ranks
  std::atomic<milliseconds> timeout_;
  std::atomic<uint64_t> calls_{0};
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> create_same_host_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    const SameHostOptions& options) {
  WEFT_CHECK_ARGUMENT(options.timeout > milliseconds::zero(),
                      "same-host backend: the timeout is positive");
  WEFT_CHECK_ARGUMENT(options.spin >= std::chrono::microseconds::zero(),
                      "same-host backend: the spin is not negative");
  WEFT_CHECK_ARGUMENT(
      size >= 1 && rank >= 0 && rank < size,
      absl::StrCat("same-host backend: there is no rank ", rank, " in a group of ", size));
  StoreNotices notices(store);
  absl::StatusOr<std::unique_ptr<internal::Mesh>> mesh =
      internal::Mesh::form(rank, size, notices, end_of(options.timeout));
  if (!mesh.ok()) throw_failure(mesh.status());
  CollectiveGroup::Options group;
  group.spin = options.spin;
  // The last one to let go may be a thread of the group itself, which cannot wait for its own end.
  const auto end = [](Ranks* ranks) {
    if (ranks->group.on_own_thread()) {
      std::thread([ranks] { delete ranks; }).detach();
    } else {
      delete ranks;
    }
  };
  return c10::make_intrusive<SameHostBackend>(
      std::shared_ptr<Ranks>(new Ranks(*std::move(mesh), group), end), options.timeout);
}

}  // namespace weft
