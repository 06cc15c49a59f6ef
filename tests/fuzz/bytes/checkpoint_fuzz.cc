// A whole checkpoint. The first byte says which checksums are corrected, so that the rest is read.
// Then come the manifest (u16 size, bytes) and the owner's shard. The shard is also read as a state
// file of its own. An accepted checkpoint must be saved again and then read without a change.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <zlib.h>

#include <ATen/core/Tensor.h>

#include "absl/strings/str_cat.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/internal/manifest.h"
#include "weft/checkpoint/step_snapshot.h"
#include "weft/tests/fuzz/fuzz.h"
#include "weft/tests/fuzz/memory_file.h"

namespace weft::fuzz {
namespace {

namespace fs = std::filesystem;

// In memory if the machine has /dev/shm. Each process has one folder, which is emptied for each
// input.
const fs::path& folder() {
  static const fs::path made = [] {
    const char* base = fs::exists("/dev/shm") ? "/dev/shm" : "/tmp";
    std::string name = absl::StrCat(base, "/weft_checkpoint_fuzz.XXXXXX");
    require(::mkdtemp(name.data()) != nullptr, "no folder for checkpoints");
    static const struct Remover {
      fs::path path;
      ~Remover() { fs::remove_all(path); }
    } remover{name};
    return remover.path;
  }();
  return made;
}

// File calls without real syncing: the disk is not under test.
const FileCalls& quick_calls() {
  static const FileCalls calls = [] {
    FileCalls calls = FileCalls::system();
    calls.fsync = [](int) { return 0; };
    return calls;
  }();
  return calls;
}

uint32_t sum_of(std::string_view bytes) {
  return static_cast<uint32_t>(
      ::crc32_z(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

void write(const fs::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary).write(content.data(), static_cast<long>(content.size()));
}

void require_same(const TensorMap& a, const TensorMap& b) {
  require(a.size() == b.size(), "tensors are lost");
  for (const auto& [name, tensor] : a) {
    const auto other = b.find(name);
    require(other != b.end() && other->second.sizes() == tensor.sizes() &&
                other->second.scalar_type() == tensor.scalar_type(),
            "a tensor changes");
    require(
        tensor.nbytes() == 0 || std::memcmp(tensor.const_data_ptr(), other->second.const_data_ptr(),
                                            tensor.nbytes()) == 0,
        "values change");
  }
}

void check_state_file(std::string_view content) {
  const MemoryFile file(content);
  const auto state = load_tensors(file.path());
  if (!state.ok()) {
    require_refusal(state.status());
    return;
  }
  const std::string copy = (folder() / "copy.safetensors").string();
  require(save_tensors(copy, state->tensors, state->metadata, quick_calls()).ok(),
          "what was read cannot be saved");
  const auto again = load_tensors(copy);
  require(again.ok() && again->metadata == state->metadata, "what was saved is refused");
  require_same(state->tensors, again->tensors);
}

void check_checkpoint(CheckpointFolder checkpoints) {
  const auto loaded = checkpoints.load_newest();
  if (!loaded.ok()) {
    require_refusal(loaded.status());
    return;
  }
  const auto snapshot = checkpoint_internal::read_snapshot(checkpoints, loaded->info.step);
  if (!snapshot.ok()) {
    require_refusal(snapshot.status());
    return;
  }
  // The input may name any incarnation. claim() must give a later one.
  const absl::Status claimed = checkpoints.claim();
  if (!claimed.ok()) return require_refusal(claimed);
  require(checkpoints.incarnation() > loaded->info.incarnation, "an incarnation comes twice");
  const auto written = checkpoint_internal::write_snapshot(checkpoints, *snapshot);
  require(written.ok(), "what was read cannot be written");
  const auto again = checkpoint_internal::read_snapshot(checkpoints, *written);
  require(again.ok(), "what was written is refused");
  require_same(snapshot->parameters, again->parameters);
  require(snapshot->optimizers.size() == again->optimizers.size(), "optimizers are lost");
  for (const auto& [name, optimizer] : snapshot->optimizers) {
    const auto other = again->optimizers.find(name);
    require(other != again->optimizers.end() && other->second.sequences == optimizer.sequences,
            "lines change");
    require_same(optimizer.state, other->second.state);
  }
}

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::fuzz;
  Bytes input(data, size);
  const uint8_t mend = input.number<uint8_t>();
  std::string manifest(input.chunk());
  const std::string_view shard = input.rest();
  if ((mend & 1) != 0) {
    // The text of a manifest, followed by its right checksum.
    absl::StrAppend(&manifest, ",\n  \"crc32\": \"", absl::Hex(sum_of(manifest), absl::kZeroPad8),
                    "\"\n}\n");
  } else if ((mend & 2) != 0) {
    // A manifest that lists the shard as it is. The text becomes metadata: u8 size and name, u8
    // size and value.
    weft::checkpoint_internal::Manifest listed;
    listed.info.step = 1;
    listed.shards.push_back({"owner.safetensors", shard.size(), sum_of(shard)});
    for (Bytes lines(manifest); !lines.empty();) {
      const std::string name(lines.take(lines.below(32)));
      listed.info.metadata[name] = std::string(lines.take(lines.below(16)));
    }
    const auto text = weft::checkpoint_internal::render_manifest(listed);
    if (!text.ok()) return 0;  // metadata that is not UTF-8
    manifest = *text;
  }
  const std::string root = (folder() / "run").string();
  const fs::path step = fs::path(root) / "step-000001";
  fs::create_directories(step);
  write(step / "manifest.json", manifest);
  write(step / "owner.safetensors", shard);
  check_checkpoint(weft::CheckpointFolder(root, {.keep = 0, .calls = &quick_calls()}));
  fs::remove_all(root);
  check_state_file(shard);
  return 0;
}
