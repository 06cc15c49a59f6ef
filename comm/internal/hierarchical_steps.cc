#include "weft/comm/internal/hierarchical_steps.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace weft::comm_internal {
namespace {

using std::chrono::milliseconds;

// Ranks wait this much longer for their host leader than it waits for other hosts.
constexpr milliseconds kTellGrace{500};

}  // namespace

Places places_of(int rank, const std::vector<std::string>& hosts) {
  Places places;
  std::vector<std::string> seen;
  for (int one = 0; one < static_cast<int>(hosts.size()); ++one) {
    const std::string& host = hosts[static_cast<size_t>(one)];
    const auto known = std::find(seen.begin(), seen.end(), host);
    places.host_of.push_back(static_cast<int>(known - seen.begin()));
    if (known == seen.end()) {
      seen.push_back(host);
      places.leaders.push_back(one);
    }
    if (host == hosts[static_cast<size_t>(rank)]) {
      if (one == rank) places.in_host = static_cast<int>(places.host.size());
      places.host.push_back(one);
    }
  }
  places.host_index = places.host_of[static_cast<size_t>(rank)];
  return places;
}

WaitLimits::WaitLimits(milliseconds timeout)
    : timeout_(timeout), deadline_(Clock::now() + timeout) {}

void WaitLimits::host_has_met(bool leads) {
  grace_ = kTellGrace;
  if (!leads) deadline_ = Clock::now() + timeout_;
}

milliseconds WaitLimits::left() const {
  return std::max(std::chrono::ceil<milliseconds>(deadline_ - Clock::now()), milliseconds(1));
}

HierarchicalSteps::HierarchicalSteps(int size, Places places,
                                     c10::intrusive_ptr<SameHostBackend> host, BackendPtr leaders)
    : size_(size),
      places_(std::move(places)),
      host_(std::move(host)),
      leaders_(std::move(leaders)) {}

// After an error the ranks may be at different operations. So all later operations fail.
void HierarchicalSteps::run(const std::string& label, const std::function<void()>& operation) {
  std::string reason;
  if (!failure_.empty()) {
    reason = absl::StrCat("an earlier operation failed: ", failure_);
  } else {
    try {
      return operation();
    } catch (const c10::Error& failed) {
      reason = failed.what_without_backtrace();
    } catch (const std::exception& failed) {
      reason = absl::StrCat("between hosts: ", failed.what());
    }
    failure_ = absl::StrCat(label, ": ", reason);
    host_->abort(absl::CancelledError(reason));
    BackendPtr leaders;  // its end closes its connections, so that the other host leaders notice
    MutexLock lock(mutex_);
    leaders.swap(leaders_);
  }
  C10_THROW_ERROR(DistBackendError, absl::StrCat(label, " among hosts: ", reason));
}

void HierarchicalSteps::abort() {
  host_->abort();
  if (const BackendPtr between = leaders()) between->abort();
}

HierarchicalSteps::BackendPtr HierarchicalSteps::leaders() const {
  MutexLock lock(mutex_);
  return leaders_;
}

void HierarchicalSteps::all_reduce(const std::string& label, const at::Tensor& tensor, Op op,
                                   WaitLimits& waits) {
  const at::ScalarType type = tensor.scalar_type();
  const bool half = type == at::kHalf || type == at::kBFloat16;
  const bool average = op == Op::AVG;
  // The average is taken once, at the end, because hosts may have different numbers of ranks.
  const Op partial = average ? Op::SUM : op;
  Tensors sum = {half ? tensor.detach().to(at::kFloat) : tensor.detach().contiguous()};
  c10d::ReduceOptions within;
  within.reduceOp = partial;
  within.timeout = waits.within_host();
  host_->reduce(sum, within)->wait();
  waits.host_has_met(leads());
  if (leads()) {
    agree(label, tensor, waits);
    c10d::AllreduceOptions between;
    between.reduceOp = partial;
    between.timeout = waits.between_hosts();
    Tensors wide = {type == at::kShort    ? sum[0].to(at::kInt)
                    : sum[0].is_complex() ? at::view_as_real(sum[0])
                                          : sum[0]};
    leaders()->allreduce(wide, between)->wait();
    if (type == at::kShort) sum[0].copy_(wide[0]);
    if (average) sum[0].div_(size_);
  }
  spread(sum, 0, waits);
  if (sum[0].data_ptr() != tensor.data_ptr()) tensor.detach().copy_(sum[0]);
}

void HierarchicalSteps::broadcast(const std::string& label, const at::Tensor& tensor, int root,
                                  WaitLimits& waits) {
  Tensors value = {tensor.detach().contiguous()};
  const auto here = std::find(places_.host.begin(), places_.host.end(), root);
  const bool ours = here != places_.host.end();
  if (ours) {
    spread(value, static_cast<int>(here - places_.host.begin()), waits);
  } else {
    meet(waits);  // otherwise the other ranks would not know when their leader's time begins
  }
  waits.host_has_met(leads());
  if (leads()) {
    agree(label, tensor, waits);
    c10d::BroadcastOptions between;
    between.rootRank = places_.host_of[static_cast<size_t>(root)];
    between.timeout = waits.between_hosts();
    leaders()->broadcast(value, between)->wait();
  }
  if (!ours) spread(value, 0, waits);
  if (value[0].data_ptr() != tensor.data_ptr()) tensor.detach().copy_(value[0]);
}

void HierarchicalSteps::barrier(const std::string& label, WaitLimits& waits) {
  meet(waits);
  waits.host_has_met(leads());
  if (leads()) agree(label, at::Tensor(), waits);
  meet(waits);
}

void HierarchicalSteps::meet(const WaitLimits& waits) {
  c10d::BarrierOptions options;
  options.timeout = waits.within_host();
  host_->barrier(options)->wait();
}

void HierarchicalSteps::spread(Tensors& value, int root, const WaitLimits& waits) {
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = waits.within_host();
  host_->broadcast(value, options)->wait();
}

// Gloo ends the process if sizes differ, and mixes up operations that do not match. So the host
// leaders first tell each other what they are about to do.
void HierarchicalSteps::agree(const std::string& label, const at::Tensor& tensor,
                              const WaitLimits& waits) {
  using Label = std::array<char, 192>;  // a text that ends with a zero byte
  std::string text = label;
  if (tensor.defined()) absl::StrAppend(&text, " of shape ", c10::str(tensor.sizes()));
  Label mine{};
  std::memcpy(mine.data(), text.data(), std::min(text.size(), mine.size() - 1));
  const auto length = static_cast<int64_t>(mine.size());
  const auto hosts = static_cast<int64_t>(places_.leaders.size());
  at::Tensor input = at::empty({length}, at::kByte);
  at::Tensor output = at::empty({hosts * length}, at::kByte);
  std::memcpy(input.data_ptr(), mine.data(), mine.size());
  c10d::AllgatherOptions options;
  options.timeout = waits.between_hosts();
  leaders()->_allgather_base(output, input, options)->wait();
  for (int64_t host = 0; host < hosts; ++host) {
    Label other{};
    std::memcpy(other.data(), output.const_data_ptr<uint8_t>() + host * length, other.size());
    if (other == mine) continue;
    other.back() = 0;
    const int rank = places_.leaders[static_cast<size_t>(host)];
    C10_THROW_ERROR(DistBackendError,
                    absl::StrCat("rank ", places_.leaders[static_cast<size_t>(places_.host_index)],
                                 " calls ", mine.data(), ", rank ", rank, " calls ",
                                 static_cast<const char*>(other.data())));
  }
}

}  // namespace weft::comm_internal
