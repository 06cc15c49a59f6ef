// Wraps LibTorch's Gloo. This is the only file that includes Gloo's headers. They are Debian's, and
// older than the Gloo inside libtorch_cpu. Members of ProcessGroupGloo are pointers, so its layout
// does not depend on these headers. But GlooStore derives from a class that has grown since. So no
// GlooStore may be made here.
#include "weft/comm/gloo_backend.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/comm/internal/exception_text.h"
#include "weft/comm/tensors/tensor_arguments.h"

namespace weft {
namespace {

using c10d::ReduceOp;
using comm_internal::single;
using comm_internal::Tensors;

// Whether Gloo supports the data type. Data of other types is moved as bytes.
bool gloo_knows(at::ScalarType type) {
  switch (type) {
    case at::ScalarType::Float:
    case at::ScalarType::Double:
    case at::ScalarType::Half:
    case at::ScalarType::BFloat16:
    case at::ScalarType::Char:
    case at::ScalarType::Byte:
    case at::ScalarType::Bool:
    case at::ScalarType::Int:
    case at::ScalarType::Long:
      return true;
    default:
      return false;
  }
}

// Checks arguments that LibTorch's Gloo does not check, or checks late or with other texts. Moves
// data types that Gloo does not know as bytes. Keeps booleans 0 or 1: Gloo would add them up as
// bytes.
class GlooBackend : public c10d::ProcessGroupGloo {
 public:
  using Base = c10d::ProcessGroupGloo;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Base::Base;

  // Gloo cannot cancel an operation that it has started: it fails at its timeout. But later
  // operations must not start, because they would meet earlier operations of the other ranks.
  void abort() override { aborted_ = true; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    check_root("broadcast", options.rootRank);
    Tensors moved = {written("broadcast", single("broadcast", tensors))};
    return start([&] { return Base::broadcast(moved, options); });
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const char* const name = "all_reduce";
    const at::Tensor& tensor = single(name, tensors);
    check(name, tensor);
    if (tensor.layout() == at::kSparse) {
      WEFT_CHECK_ARGUMENT(options.reduceOp == ReduceOp::SUM,
                          absl::StrCat(name, ": Gloo takes sums of sparse tensors only"));
      return start([&] { return Base::allreduce(tensors, options); });
    }
    c10d::AllreduceOptions own = options;
    own.reduceOp = reduction(name, options.reduceOp, tensor);
    check_written(name, tensor);
    return start([&] { return Base::allreduce(tensors, own); });
  }

  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override {
    const char* const name = "all_reduce_coalesced";
    WEFT_CHECK_ARGUMENT(!tensors.empty(), absl::StrCat(name, ": takes at least one tensor"));
    c10d::AllreduceCoalescedOptions own = options;
    for (const at::Tensor& tensor : tensors) {
      own.reduceOp = reduction(name, options.reduceOp, tensor);
      check_written(name, tensor);
    }
    return start([&] { return Base::allreduce_coalesced(tensors, own); });
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const char* const name = "reduce";
    check_root(name, options.rootRank);
    c10d::ReduceOptions own = options;
    own.reduceOp = reduction(name, options.reduceOp, single(name, tensors));
    check_written(name, tensors[0]);
    return start([&] { return Base::reduce(tensors, own); });
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    const char* const name = "all_gather";
    const at::Tensor& given = single(name, inputs);
    WEFT_CHECK_ARGUMENT(outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(getSize()),
                        absl::StrCat(name, ": takes one list of ", getSize(), " outputs"));
    Tensors from = {read(name, given)};
    std::vector<Tensors> to = {all_written(name, outputs[0], given)};
    return start([&] { return Base::allgather(to, from, options); });
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    const char* const name = "all_gather_into_tensor";
    check(name, input);
    check_written(name, output);
    WEFT_CHECK_ARGUMENT(
        input.scalar_type() == output.scalar_type() && output.numel() == input.numel() * getSize(),
        absl::StrCat(name, ": the output has ", getSize(), " times ", input.numel(),
                     " elements of ", c10::toString(input.scalar_type())));
    check_contiguous(name, output);
    at::Tensor to = bytes_of(output).view({-1});
    at::Tensor from = bytes_of(input.detach().contiguous()).view({-1});
    return start([&] { return Base::_allgather_base(to, from, options); });
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override {
    return start([&] { return Base::allgather_coalesced(outputs, inputs, options); });
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    return start([&] { return Base::allgather_into_tensor_coalesced(outputs, inputs, options); });
  }

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    const char* const name = "gather";
    check_root(name, options.rootRank);
    const at::Tensor& given = single(name, inputs);
    Tensors from = {read(name, given)};
    std::vector<Tensors> to;
    if (check_lists(name, "outputs", outputs, options.rootRank)) {
      to.push_back(all_written(name, outputs[0], given));
    }
    return start([&] { return Base::gather(to, from, options); });
  }

  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override {
    const char* const name = "scatter";
    check_root(name, options.rootRank);
    const at::Tensor& given = single(name, outputs);
    Tensors to = {written(name, given)};
    std::vector<Tensors> from;
    if (check_lists(name, "inputs", inputs, options.rootRank)) {
      from.emplace_back();
      for (const at::Tensor& input : inputs[0]) {
        check_like(name, input, given);
        from[0].push_back(read(name, input));
      }
    }
    return start([&] { return Base::scatter(to, from, options); });
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    const char* const name = "reduce_scatter_tensor";
    c10d::ReduceScatterOptions own = options;
    own.reduceOp = reduction(name, options.reduceOp, input);
    check_written(name, output);
    WEFT_CHECK_ARGUMENT(
        input.scalar_type() == output.scalar_type() && input.numel() == output.numel() * getSize(),
        absl::StrCat(name, ": the input has ", getSize(), " times ", output.numel(),
                     " elements of ", c10::toString(output.scalar_type()), ", not ", input.numel(),
                     " of ", c10::toString(input.scalar_type())));
    check_contiguous(name, input);
    check_contiguous(name, output);
    at::Tensor to = output.view({-1}), from = input.view({-1});
    return start([&] { return Base::_reduce_scatter_base(to, from, own); });
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return start([&] { return Base::reduce_scatter(outputs, inputs, options); });
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    return start([&] { return Base::reduce_scatter_tensor_coalesced(outputs, inputs, options); });
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override {
    const char* const name = "all_to_all";
    check(name, input);
    check_written(name, output);
    WEFT_CHECK_ARGUMENT(input.scalar_type() == output.scalar_type(),
                        absl::StrCat(name, ": takes tensors of one type"));
    check_shares(name, "input", input, input_splits);
    check_shares(name, "output", output, output_splits);
    check_contiguous(name, input);
    check_contiguous(name, output);
    at::Tensor to = bytes_of(output), from = bytes_of(input);
    return start(
        [&] { return Base::alltoall_base(to, from, output_splits, input_splits, options); });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return start([&] { return Base::barrier(options); });
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    check_message("send", tensors, to, tag);
    return start([&] { return Base::send(tensors, to, tag); });
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    check_message("recv", tensors, from, tag);
    return start([&] { return Base::recv(tensors, from, tag); });
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    check_message("recv", tensors, std::nullopt, tag);
    return start([&] { return Base::recvAnysource(tensors, tag); });
  }

 private:
  // Starts operations under one lock for all groups of the process. LibTorch's flight recorder
  // keeps a map of these groups, and reads and extends it without a lock whenever an operation
  // starts. Two groups on two threads would crash it.
  WorkPtr start(const std::function<WorkPtr()>& operation) {
    if (aborted_) {
      C10_THROW_ERROR(DistBackendError, "gloo: the backend was aborted");
    }
    // Recursive, so not a weft::Mutex: Base's _allgather_base and _reduce_scatter_base call other
    // virtual operations of this class, which come here again.
    static std::recursive_mutex mutex;
    const std::lock_guard lock(mutex);
    return operation();
  }

  static void check(const char* name, const at::Tensor& tensor) {
    WEFT_CHECK_ARGUMENT(tensor.defined(), absl::StrCat(name, ": an undefined tensor"));
    WEFT_CHECK_ARGUMENT(
        tensor.device().is_cpu(),
        absl::StrCat(name, ": takes CPU tensors, not one on ", c10::str(tensor.device())));
  }
  static void check_written(const char* name, const at::Tensor& tensor) {
    check(name, tensor);
    WEFT_CHECK_ARGUMENT(
        tensor.layout() == at::kStrided,
        absl::StrCat(name, ": takes strided tensors, not ", c10::str(tensor.layout()), " ones"));
    WEFT_CHECK_ARGUMENT(at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
                        absl::StrCat(name, ": a tensor that is to be written overlaps itself: ",
                                     c10::str(tensor.sizes(), " strides ", tensor.strides())));
    // LibTorch's Gloo would write into the gaps.
    WEFT_CHECK_ARGUMENT(tensor.is_non_overlapping_and_dense(),
                        absl::StrCat(name, ": Gloo takes tensors without gaps, not one of ",
                                     c10::str(tensor.sizes(), " strides ", tensor.strides())));
    WEFT_CHECK_ARGUMENT(!tensor.is_conj() && !tensor.is_neg(),
                        absl::StrCat(name, ": Gloo takes no lazy conj or neg views"));
  }
  static void check_contiguous(const char* name, const at::Tensor& tensor) {
    WEFT_CHECK_ARGUMENT(tensor.is_contiguous(),
                        absl::StrCat(name, ": Gloo takes contiguous tensors, not one of ",
                                     c10::str(tensor.sizes(), " strides ", tensor.strides())));
  }
  static void check_like(const char* name, const at::Tensor& tensor, const at::Tensor& like) {
    check(name, tensor);
    WEFT_CHECK_ARGUMENT(
        tensor.scalar_type() == like.scalar_type() && tensor.sizes() == like.sizes(),
        absl::StrCat(name, ": tensors differ: ",
                     c10::str(like.scalar_type(), like.sizes(), " and ", tensor.scalar_type(),
                              tensor.sizes())));
  }
  void check_root(const char* name, int64_t root) const {
    WEFT_CHECK_ARGUMENT(
        root >= 0 && root < getSize(),
        absl::StrCat(name, ": there is no rank ", root, " in a group of ", getSize()));
  }
  // Checks that only the root has lists, and the right number. Returns whether this is the root.
  bool check_lists(const char* name, const char* which, const std::vector<Tensors>& lists,
                   int64_t root) const {
    if (getRank() != root) {
      WEFT_CHECK_ARGUMENT(lists.empty(), absl::StrCat(name, ": only the root has ", which));
      return false;
    }
    WEFT_CHECK_ARGUMENT(lists.size() == 1 && lists[0].size() == static_cast<size_t>(getSize()),
                        absl::StrCat(name, ": the root takes one list of ", getSize(), " ", which));
    return true;
  }
  void check_message(const char* name, const Tensors& tensors, std::optional<int> peer,
                     int tag) const {
    const at::Tensor& tensor = single(name, tensors);
    check_written(name, tensor);
    check_contiguous(name, tensor);
    WEFT_CHECK_ARGUMENT(!peer || (*peer >= 0 && *peer < getSize() && *peer != getRank()),
                        absl::StrCat(name, ": rank ", getRank(), " of ", getSize(), " has no peer ",
                                     peer.value_or(0)));
    WEFT_CHECK_ARGUMENT(tag >= 0, absl::StrCat(name, ": a tag is not negative: ", tag));
  }
  void check_shares(const char* name, const char* which, const at::Tensor& tensor,
                    const std::vector<int64_t>& splits) const {
    const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    if (splits.empty()) {
      WEFT_CHECK_ARGUMENT(rows % getSize() == 0,
                          absl::StrCat(name, ": the ", which, " has ", rows, " rows, which ",
                                       getSize(), " ranks cannot share"));
      return;
    }
    int64_t sum = 0;
    bool fit = splits.size() == static_cast<size_t>(getSize());
    for (const int64_t split : splits) {
      fit = fit && split >= 0 && split <= rows - sum;
      if (fit) sum += split;
    }
    WEFT_CHECK_ARGUMENT(fit && sum == rows,
                        absl::StrCat(name, ": ", which, " splits ", c10::str(splits),
                                     " do not share ", rows, " rows among ", getSize(), " ranks"));
  }

  static ReduceOp::RedOpType reduction(const char* name, const ReduceOp& op,
                                       const at::Tensor& tensor) {
    check(name, tensor);
    comm_internal::kernel_for(name, comm_internal::reduction_of(name, op), tensor);
    const at::ScalarType type = tensor.scalar_type();
    const bool sums = op == ReduceOp::SUM || op == ReduceOp::AVG;
    WEFT_CHECK_ARGUMENT(
        gloo_knows(type) || (sums && tensor.is_complex() && std::string(name) == "all_reduce"),
        absl::StrCat(name, ": Gloo cannot do this with ", c10::toString(type), " tensors"));
    if (type == at::kBool && op == ReduceOp::SUM) return ReduceOp::MAX;
    return op.op_;
  }

  static at::Tensor read(const char* name, const at::Tensor& tensor) {
    check(name, tensor);
    const at::Tensor plain = tensor.detach().resolve_conj().resolve_neg();
    if (!gloo_knows(tensor.scalar_type())) return bytes_of(plain.contiguous());
    return plain.is_non_overlapping_and_dense() ? plain : plain.contiguous();
  }
  static at::Tensor written(const char* name, const at::Tensor& tensor) {
    check_written(name, tensor);
    if (gloo_knows(tensor.scalar_type())) return tensor;
    check_contiguous(name, tensor);
    return bytes_of(tensor);
  }
  static Tensors all_written(const char* name, const Tensors& tensors, const at::Tensor& like) {
    Tensors all;
    for (const at::Tensor& tensor : tensors) {
      check_like(name, tensor, like);
      all.push_back(written(name, tensor));
    }
    return all;
  }
  // If Gloo does not know the type, the memory of a contiguous tensor as bytes, with the same rows.
  static at::Tensor bytes_of(const at::Tensor& tensor) {
    if (gloo_knows(tensor.scalar_type())) return tensor;
    const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    if (tensor.numel() == 0) return at::empty({rows, 0}, at::kByte);
    return tensor.detach().view({rows, tensor.numel() / rows}).view(at::kByte);
  }

  std::atomic<bool> aborted_{false};
};

// Ignores SIGPIPE if it is at its default, because Gloo writes to sockets of ranks that are gone.
// (Python ignores the signal from the start.)
void outlive_broken_pipes() {
  struct sigaction now = {};
  sigaction(SIGPIPE, nullptr, &now);
  if (now.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> create_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                      int rank, int size,
                                                      std::chrono::milliseconds timeout,
                                                      const std::string& interface) {
  WEFT_CHECK_ARGUMENT(size >= 1 && rank >= 0 && rank < size,
                      absl::StrCat("gloo: there is no rank ", rank, " in a group of ", size));
  outlive_broken_pipes();
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  std::string names = interface;
  if (names.empty()) {
    if (const char* const set = std::getenv("GLOO_SOCKET_IFNAME")) names = set;
  }
  if (names.empty()) {
    options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  }
  for (const auto& name : absl::StrSplit(names, ',', absl::SkipEmpty())) {
    const std::string text(name);
    try {
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(text));
    } catch (const std::exception& failed) {
      C10_THROW_ERROR(ValueError,
                      absl::StrCat("gloo: network interface '", text,
                                   "' cannot be used: ", comm_internal::text_of(failed)));
    }
  }
  try {
    auto backend = c10::make_intrusive<GlooBackend>(store, rank, size, options);
    // Gloo's constructor returns when this rank's own connections are open. If this rank left then,
    // ranks that still connect to each other would fail. So wait here for all ranks.
    backend->barrier({})->wait();
    return backend;
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception& failed) {
    C10_THROW_ERROR(DistBackendError, absl::StrCat("gloo: rank ", rank, " of ", size,
                                                   " cannot connect: ", failed.what()));
  }
}

c10::intrusive_ptr<c10d::Backend> create_checked_backend(
    c10::intrusive_ptr<c10d::Backend> backend, const c10::intrusive_ptr<c10d::Store>& store,
    std::chrono::milliseconds timeout) {
  auto compares = create_gloo_backend(store, backend->getRank(), backend->getSize(), timeout);
  return c10::make_intrusive<c10d::ProcessGroupWrapper>(backend, std::move(compares));
}

}  // namespace weft
