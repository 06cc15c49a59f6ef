#include "weft/ddp/internal/old_checkpoint.h"

#include <cstdint>
#include <fstream>
#include <utility>
#include <vector>

#include <ATen/core/Dict.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace weft::ddp_internal {
namespace {

using torch::serialize::InputArchive;

// The length and hash of the rest of `file`.
FoundCheckpoint hash_of(std::istream& file) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  std::vector<char> piece(size_t{1} << 20);
  FoundCheckpoint found;
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

int64_t read_int(InputArchive& archive, const std::string& key) {
  c10::IValue value;
  if (!archive.try_read(key, value) || !value.isInt()) {
    C10_THROW_ERROR(ValueError,
                    absl::StrCat("the archive is no checkpoint: it has no '", key, "'"));
  }
  return value.toInt();
}

TensorMap read_tensors(InputArchive& archive) {
  c10::IValue value;
  if (!archive.try_read("model", value) || !value.isGenericDict()) {
    C10_THROW_ERROR(ValueError, "the archive is no checkpoint: it has no 'model'");
  }
  TensorMap tensors;
  for (const auto& item : value.toGenericDict()) {
    tensors.emplace(item.key().toStringRef(), item.value().toTensor());
  }
  return tensors;
}

}  // namespace

LoadedCheckpoint read_old_checkpoint(const std::string& path) {
  // The file is opened once. So the hashed bytes are the loaded ones, even if the path gets another
  // file.
  std::ifstream file(path, std::ios::binary);
  if (!file) C10_THROW_ERROR(ValueError, "the file cannot be opened");
  LoadedCheckpoint loaded;
  loaded.found = hash_of(file);
  file.clear();
  file.seekg(0);
  InputArchive archive;
  try {
    archive.load_from(file, at::Device(at::kCPU));
  } catch (const c10::Error& error) {
    C10_THROW_ERROR(ValueError,
                    absl::StrCat("it is no checkpoint folder, and no whole archive of an earlier "
                                 "release: ",
                                 error.what_without_backtrace()));
  }
  CheckpointProgress& progress = loaded.found.progress;
  progress.epoch = read_int(archive, "epoch");
  progress.step = read_int(archive, "step");
  progress.sampler_position = read_int(archive, "sampler_position");
  loaded.tensors = read_tensors(archive);
  InputArchive optimizer;
  if (archive.try_read("optimizer", optimizer)) loaded.optimizer = std::move(optimizer);
  return loaded;
}

}  // namespace weft::ddp_internal
