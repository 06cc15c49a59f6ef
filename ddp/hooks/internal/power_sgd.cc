#include "weft/ddp/hooks/internal/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "absl/strings/str_cat.h"

namespace weft::ddp_internal {
namespace {

std::vector<std::vector<int64_t>> shapes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<int64_t>> shapes;
  for (const at::Tensor& tensor : tensors) shapes.push_back(tensor.sizes().vec());
  return shapes;
}

int64_t square_side(int64_t length) {
  auto side = static_cast<int64_t>(std::sqrt(static_cast<double>(length)));
  while (side * side < length) ++side;
  return side;
}

// Uses its own generator, so that the program's random numbers do not change. Draws on the CPU, so
// that the numbers are the same on every rank, whatever its device.
at::Tensor random_like(const at::Tensor& like, const at::Generator& generator) {
  return at::randn(like.sizes(), generator, like.options().device(at::kCPU)).to(like.device());
}

}  // namespace

// The gradients of a bucket, by how they are reduced.
struct PowerSgd::Parts {
  std::vector<at::Tensor> plain;  // averaged as they are
  // Matrices, grouped by shape. The shapes are in the order of their first appearance.
  std::vector<std::vector<at::Tensor>> alike;
};

// Batches of matrices M [batch, n, m], with P [batch, n, rank] and Q [batch, m, rank]. P and Q are
// views of flat tensors, and each flat tensor is summed as one.
struct PowerSgd::Factors {
  std::vector<at::Tensor> ms;
  std::vector<at::Tensor> ps;
  std::vector<at::Tensor> qs;
  at::Tensor flat_p;
  at::Tensor flat_q;
  bool warm = false;  // Q is the last iteration's
};

PowerSgd::PowerSgd(std::shared_ptr<ProcessGroup> group, const PowerSgdOptions& options)
    : group_(std::move(group)), options_(options), seeds_(options.random_seed) {}

PowerSgd::Memory& PowerSgd::memory_of(const HookedBucket& bucket) {
  Memory& memory = memories_[bucket.index];
  const at::Tensor& kept = memory.error.defined() ? memory.error : memory.qs;
  const bool fits = memory.shapes == shapes_of(bucket.gradients) &&
                    (!kept.defined() || kept.scalar_type() == bucket.buffer.scalar_type());
  if (!fits) memory = {shapes_of(bucket.gradients), {}, {}};
  // `load` reads to the CPU, so the state may have to move.
  for (at::Tensor* one : {&memory.error, &memory.qs}) {
    if (one->defined()) *one = one->to(bucket.buffer.device());
  }
  return memory;
}

PowerSgd::Parts PowerSgd::split(const HookedBucket& bucket, const at::Tensor& flat) {
  Parts parts;
  if (options_.flatten_bucket) {
    const int64_t side = square_side(flat.numel());
    stats_.numel_before += bucket.buffer.numel();
    stats_.numel_after += 2 * side * std::min(side, options_.matrix_approximation_rank);
    if (side > 0) parts.alike.push_back({flat.view({side, side})});
    return parts;
  }
  for (const at::Tensor& gradient : bucket.gradients) {
    const int64_t rows = gradient.dim() > 0 ? gradient.size(0) : 1;
    const int64_t columns = rows > 0 ? gradient.numel() / rows : 0;
    const int64_t compressed =
        (rows + columns) * std::min({rows, columns, options_.matrix_approximation_rank});
    stats_.numel_before += gradient.numel();
    if (!(compressed * options_.min_compression_rate < gradient.numel())) {
      parts.plain.push_back(gradient);
      stats_.numel_after += gradient.numel();
      continue;
    }
    stats_.numel_after += compressed;
    const at::Tensor matrix = gradient.view({rows, columns});
    const auto same = std::find_if(parts.alike.begin(), parts.alike.end(), [&](const auto& other) {
      return other[0].sizes() == matrix.sizes();
    });
    if (same == parts.alike.end()) {
      parts.alike.push_back({matrix});
    } else {
      same->push_back(matrix);
    }
  }
  return parts;
}

PowerSgd::Factors PowerSgd::factors(const Parts& parts, Memory& memory) {
  Factors result;
  for (const std::vector<at::Tensor>& matrices : parts.alike) {
    if (options_.batch_tensors_with_same_shape && matrices.size() > 1) {
      result.ms.push_back(at::stack(matrices));
    } else {
      for (const at::Tensor& matrix : matrices) result.ms.push_back(matrix.unsqueeze(0));
    }
  }
  const auto rank = [this](const at::Tensor& m) {
    return std::min({m.size(1), m.size(2), options_.matrix_approximation_rank});
  };
  int64_t p_size = 0;
  int64_t q_size = 0;
  for (const at::Tensor& m : result.ms) {
    p_size += m.size(0) * m.size(1) * rank(m);
    q_size += m.size(0) * m.size(2) * rank(m);
  }
  if (result.ms.empty()) return result;
  result.flat_p = at::empty({p_size}, result.ms[0].options());
  result.warm =
      memory.qs.defined() && memory.qs.numel() == q_size;  // false if another rank was loaded
  result.flat_q = result.warm ? memory.qs : at::empty({q_size}, result.ms[0].options());
  int64_t p_begin = 0;
  int64_t q_begin = 0;
  for (const at::Tensor& m : result.ms) {
    const auto cut = [&](const at::Tensor& flat, int64_t& begin, int64_t rows) {
      const int64_t length = m.size(0) * rows * rank(m);
      begin += length;
      return flat.narrow(0, begin - length, length).view({m.size(0), rows, rank(m)});
    };
    result.ps.push_back(cut(result.flat_p, p_begin, m.size(1)));
    result.qs.push_back(cut(result.flat_q, q_begin, m.size(2)));
  }
  return result;
}

void PowerSgd::fill(const Factors& factors) {
  const at::Generator generator = at::detail::createCPUGenerator(seeds_.next());
  for (const at::Tensor& q : factors.qs) {
    q.copy_(random_like(q, generator));
    orthogonalize(q, options_.orthogonalization_epsilon);
  }
}

// If a gradient was zero or of lower rank, Q has zero columns, which would stay zero for ever.
// Their part of the gradient would only go to the error and never to the parameters. So they are
// drawn again.
void PowerSgd::wake(const Factors& factors) {
  at::Generator generator;
  for (const at::Tensor& q : factors.qs) {
    orthogonalize(q, options_.orthogonalization_epsilon);
    const at::Tensor asleep = (q == 0).all(1, /*keepdim=*/true);
    if (!asleep.any().item<bool>()) continue;
    if (!generator.defined()) generator = at::detail::createCPUGenerator(seeds_.next());
    q.copy_(at::where(asleep, random_like(q, generator), q));
    orthogonalize(q, options_.orthogonalization_epsilon);
  }
}

void PowerSgd::reduce(const HookedBucket& bucket) {
  const at::NoGradGuard no_grad;
  Memory& memory = memory_of(bucket);
  at::Tensor flat = bucket.buffer;
  if (options_.flatten_bucket) {
    const int64_t side = square_side(flat.numel());
    flat = at::cat({flat, at::zeros({side * side - flat.numel()}, flat.options())});
  }
  at::Tensor sent;
  if (options_.use_error_feedback) {
    if (memory.error.defined() && memory.error.numel() == flat.numel()) flat.add_(memory.error);
    sent = flat.clone();
  }

  const Parts parts = split(bucket, flat);
  Factors low = factors(parts, memory);
  ProcessGroup::Work plain_sum;
  at::Tensor plain;
  if (!parts.plain.empty()) {
    std::vector<at::Tensor> pieces;
    for (const at::Tensor& one : parts.plain) pieces.push_back(one.reshape(-1));
    plain = at::cat(pieces);
    plain_sum = group_->all_reduce_async(plain);
  }
  if (!low.ms.empty()) {
    low.warm ? wake(low) : fill(low);
    for (size_t i = 0; i < low.ms.size(); ++i) {
      at::bmm_out(low.ps[i], low.ms[i], low.qs[i]);
    }
    group_->all_reduce(low.flat_p);  // not divided, because it is made orthonormal
    for (size_t i = 0; i < low.ms.size(); ++i) {
      orthogonalize(low.ps[i], options_.orthogonalization_epsilon);
      at::bmm_out(low.qs[i], low.ms[i].transpose(1, 2), low.ps[i]);
    }
    group_->all_reduce(low.flat_q);
    low.flat_q.div_(group_->size());
  }
  if (plain_sum) {
    plain_sum->wait();
    plain.div_(group_->size());
    int64_t begin = 0;
    for (const at::Tensor& one : parts.plain) {
      one.copy_(plain.narrow(0, begin, one.numel()).view(one.sizes()));
      begin += one.numel();
    }
  }
  size_t batch = 0;
  for (const std::vector<at::Tensor>& matrices : parts.alike) {
    for (size_t i = 0; i < matrices.size();) {
      at::Tensor& m = low.ms[batch];
      at::bmm_out(m, low.ps[batch], low.qs[batch].transpose(1, 2));
      ++batch;
      const bool stacked = m.size(0) > 1;  // otherwise `m` is a view of the gradient
      for (int64_t j = 0; j < m.size(0); ++j, ++i) {
        if (stacked) matrices[i].copy_(m[j]);
      }
    }
  }

  if (options_.use_error_feedback) memory.error = sent.sub_(flat);
  memory.qs = options_.warm_start ? low.flat_q : at::Tensor();
  if (options_.flatten_bucket) bucket.buffer.copy_(flat.narrow(0, 0, bucket.buffer.numel()));
  count(bucket);
}

void PowerSgd::save(torch::serialize::OutputArchive& archive) const {
  archive.write("iteration", c10::IValue(iteration_));
  archive.write("seeds", c10::IValue(seeds_.state()));
  archive.write("numel_before", c10::IValue(stats_.numel_before));
  archive.write("numel_after", c10::IValue(stats_.numel_after));
  c10::List<int64_t> buckets;
  for (const auto& [index, memory] : memories_) {
    buckets.push_back(static_cast<int64_t>(index));
    torch::serialize::OutputArchive one(archive.compilation_unit());
    c10::List<c10::List<int64_t>> shapes;
    for (const std::vector<int64_t>& shape : memory.shapes) {
      shapes.push_back(c10::List<int64_t>(shape));
    }
    one.write("shapes", c10::IValue(shapes));
    if (memory.error.defined()) one.write("error", memory.error);
    if (memory.qs.defined()) one.write("qs", memory.qs);
    archive.write(absl::StrCat("bucket", index), one);
  }
  archive.write("buckets", c10::IValue(buckets));
}

void PowerSgd::load(torch::serialize::InputArchive& archive) {
  const auto read = [&archive](const std::string& key) {
    c10::IValue value;
    archive.read(key, value);
    return value;
  };
  iteration_ = read("iteration").toInt();
  seeds_.set_state(read("seeds").toStringRef());
  stats_ = {read("numel_before").toInt(), read("numel_after").toInt()};
  memories_.clear();
  for (const int64_t index : read("buckets").toIntVector()) {
    torch::serialize::InputArchive one;
    archive.read(absl::StrCat("bucket", index), one);
    Memory& memory = memories_[static_cast<size_t>(index)];
    c10::IValue shapes;
    one.read("shapes", shapes);
    for (const c10::IValue& shape : shapes.toListRef())
      memory.shapes.push_back(shape.toIntVector());
    if (!one.try_read("error", memory.error)) memory.error = at::Tensor();
    if (!one.try_read("qs", memory.qs)) memory.qs = at::Tensor();
  }
}

}  // namespace weft::ddp_internal
