#include "weft/ddp/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Dict.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/checkpoint/atomic_file.h"
#include "weft/comm/exchange_device.h"
#include "weft/ddp/internal/move_states.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace weft {
namespace {

using torch::nn::Module;
using torch::optim::Optimizer;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;
using NamedTensors = std::map<std::string, at::Tensor>;

constexpr std::string_view kModulePrefix = "module.";
constexpr size_t kReportBytes = 512;  // of an error text that is sent to the other ranks

std::string what(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

// The error text of a step; "" if it did not fail.
std::string error_of(const std::function<void()>& step) {
  try {
    step();
  } catch (const std::exception& error) {
    const std::string text = what(error);
    return text.empty() ? "an error without a text" : text;
  }
  return "";
}

// The content that a rank has read at the path. It must be equal on all ranks.
struct Found {
  CheckpointProgress progress;
  uint64_t bytes = 0;  // of the file
  uint64_t hash = 0;   // of all bytes

  friend bool operator==(const Found&, const Found&) = default;
};

// A point that all ranks reach, each with an error ("" for none) and what it found. Throws on all
// ranks if one brings an error or if they found different files.
class Agreement {
 public:
  Agreement(ProcessGroup& group, const Module& module, std::string place)
      : group_(group), place_(std::move(place)), device_(at::kCPU) {
    const std::vector<at::Tensor> parameters = module.parameters();
    if (!parameters.empty())
      device_ = comm_internal::exchange_device(group, parameters[0].device());
  }

  void reach(const std::string& error, const Found& found) {
    Report mine;
    mine.found = found;
    error.copy(mine.error, kReportBytes - 1);
    const at::Tensor bytes = at::zeros({static_cast<int64_t>(sizeof(Report))}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), &mine, sizeof(mine));
    std::vector<std::string> errors;
    std::vector<Report> reports;
    for (const at::Tensor& gathered : group_.all_gather(bytes.to(device_))) {
      Report report;
      std::memcpy(&report, gathered.cpu().const_data_ptr(), sizeof(report));
      if (report.error[0] != '\0') {
        errors.push_back(absl::StrCat("rank ", reports.size(), ": ", report.error));
      }
      reports.push_back(report);
    }
    if (!errors.empty()) fail(absl::StrJoin(errors, "; "));
    std::string others;
    for (size_t rank = 1; rank < reports.size(); ++rank) {
      if (reports[rank].found == reports[0].found) continue;
      absl::StrAppend(&others, "; rank ", rank, ": ", shown(reports[rank].found));
    }
    if (others.empty()) return;
    fail(absl::StrCat("ranks found different files: rank 0: ", shown(reports[0].found), others));
  }

 private:
  struct Report {
    Found found;
    char error[kReportBytes] = {};
  };

  static std::string shown(const Found& found) {
    return absl::StrCat("epoch ", found.progress.epoch, " step ", found.progress.step, " sample ",
                        found.progress.sampler_position, " (", found.bytes, " bytes, hash ",
                        absl::Hex(found.hash, absl::kZeroPad16), ")");
  }
  [[noreturn]] void fail(const std::string& why) const {
    C10_THROW_ERROR(ValueError, absl::StrCat(place_, why));
  }

  ProcessGroup& group_;
  const std::string place_;
  at::Device device_;  // a device whose tensors the group's backend takes
};

// Removes the prefix if all names have it.
NamedTensors unwrapped(NamedTensors tensors) {
  const bool wrapped = std::all_of(tensors.begin(), tensors.end(), [](const auto& item) {
    return item.first.starts_with(kModulePrefix);
  });
  if (!wrapped) return tensors;
  NamedTensors bare;
  for (auto& [name, tensor] : tensors) bare.emplace(name.substr(kModulePrefix.size()), tensor);
  return bare;
}

NamedTensors tensors_of(const Module& module) {
  NamedTensors tensors;
  for (const auto& item : module.named_parameters()) tensors.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) tensors.emplace(item.key(), item.value());
  return unwrapped(std::move(tensors));
}

void write(const std::string& path, const Module& module, const Optimizer* optimizer,
           const CheckpointProgress& progress) {
  const at::NoGradGuard no_grad;
  OutputArchive archive;
  archive.write("epoch", c10::IValue(progress.epoch));
  archive.write("step", c10::IValue(progress.step));
  archive.write("sampler_position", c10::IValue(progress.sampler_position));
  c10::Dict<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : tensors_of(module)) {
    tensors.insert(name, tensor.detach().cpu());
  }
  archive.write("model", c10::IValue(tensors));
  if (optimizer != nullptr) {
    OutputArchive state(archive.compilation_unit());
    optimizer->save(state);
    archive.write("optimizer", state);
  }

  absl::StatusOr<AtomicFile> file = AtomicFile::create(path);
  absl::Status status = file.status();
  if (status.ok()) {
    archive.save_to([&](const void* data, size_t size) {
      if (status.ok()) status = file->append({static_cast<const char*>(data), size});
      return size;  // the archive's own error would say less
    });
  }
  if (status.ok()) status = file->commit();
  if (!status.ok()) C10_THROW_ERROR(ValueError, std::string(status.message()));
}

// A file that was read and fits. It is copied into the module when all ranks have got so far.
struct Loaded {
  Found found;
  NamedTensors tensors;
  std::optional<InputArchive> optimizer;
};

int64_t read_int(InputArchive& archive, const std::string& key) {
  c10::IValue value;
  if (!archive.try_read(key, value) || !value.isInt()) {
    C10_THROW_ERROR(ValueError,
                    absl::StrCat("the archive is no checkpoint: it has no '", key, "'"));
  }
  return value.toInt();
}

NamedTensors read_tensors(InputArchive& archive) {
  c10::IValue value;
  if (!archive.try_read("model", value) || !value.isGenericDict()) {
    C10_THROW_ERROR(ValueError, "the archive is no checkpoint: it has no 'model'");
  }
  NamedTensors tensors;
  for (const auto& item : value.toGenericDict()) {
    tensors.emplace(item.key().toStringRef(), item.value().toTensor());
  }
  return unwrapped(std::move(tensors));
}

void check_fit(const NamedTensors& module, const NamedTensors& file) {
  std::vector<std::string> faults;
  for (const auto& [name, tensor] : module) {
    const auto found = file.find(name);
    if (found == file.end()) {
      faults.push_back(absl::StrCat("the file has no '", name, "'"));
    } else if (found->second.sizes() != tensor.sizes()) {
      faults.push_back(absl::StrCat("'", name, "' is ", c10::str(found->second.sizes()),
                                    " in the file and ", c10::str(tensor.sizes()),
                                    " in the module"));
    }
  }
  for (const auto& [name, tensor] : file) {
    if (module.count(name) == 0) faults.push_back(absl::StrCat("the module has no '", name, "'"));
  }
  if (!faults.empty()) C10_THROW_ERROR(ValueError, absl::StrJoin(faults, ", "));
}

// The length and hash of the rest of `file`.
Found hash_of(std::istream& file) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  std::vector<char> piece(size_t{1} << 20);
  Found found;
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    const auto size = static_cast<size_t>(file.gcount());
    XXH3_64bits_update(&state, piece.data(), size);
    found.bytes += size;
  }
  if (file.bad()) C10_THROW_ERROR(ValueError, "the file cannot be read");
  found.hash = XXH3_64bits_digest(&state);
  return found;
}

Loaded read(const std::string& path, const Module& module, bool with_optimizer) {
  if (!std::filesystem::exists(path)) C10_THROW_ERROR(ValueError, "there is no such file");
  // The file is opened once. So the hashed bytes are the loaded ones, even if the path gets another
  // file.
  std::ifstream file(path, std::ios::binary);
  if (!file) C10_THROW_ERROR(ValueError, "the file cannot be opened");
  Loaded loaded;
  loaded.found = hash_of(file);
  file.clear();
  file.seekg(0);
  InputArchive archive;
  archive.load_from(file, at::Device(at::kCPU));
  CheckpointProgress& progress = loaded.found.progress;
  progress.epoch = read_int(archive, "epoch");
  progress.step = read_int(archive, "step");
  progress.sampler_position = read_int(archive, "sampler_position");
  loaded.tensors = read_tensors(archive);
  check_fit(tensors_of(module), loaded.tensors);
  if (with_optimizer) {
    InputArchive state;
    if (!archive.try_read("optimizer", state)) {
      C10_THROW_ERROR(ValueError, "the file was saved without an optimizer");
    }
    loaded.optimizer = std::move(state);
  }
  return loaded;
}

}  // namespace

void save_checkpoint(ProcessGroup& group, const std::string& path, const Module& module,
                     const Optimizer* optimizer, const CheckpointProgress& progress) {
  Agreement agreement(group, module, absl::StrCat("save_checkpoint ", path, ": "));
  // No rank gets past the agreement before rank 0 reaches it, and rank 0 writes the file first.
  std::string error;
  if (group.rank() == 0) error = error_of([&] { write(path, module, optimizer, progress); });
  agreement.reach(error, {});
}

CheckpointProgress load_checkpoint(ProcessGroup& group, const std::string& path, Module& module,
                                   Optimizer* optimizer) {
  Agreement agreement(group, module, absl::StrCat("load_checkpoint ", path, ": "));
  Loaded loaded;
  agreement.reach(error_of([&] { loaded = read(path, module, optimizer != nullptr); }),
                  loaded.found);
  const at::NoGradGuard no_grad;
  agreement.reach(error_of([&] {
                    if (optimizer == nullptr) return;
                    optimizer->load(*loaded.optimizer);
                    ddp_internal::move_states_to_parameters(*optimizer);
                  }),
                  loaded.found);
  for (const auto& [name, tensor] : tensors_of(module)) tensor.copy_(loaded.tensors.at(name));
  return loaded.found.progress;
}

}  // namespace weft
