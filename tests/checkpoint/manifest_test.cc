#include "weft/checkpoint/internal/manifest.h"

#include <string>
#include <zlib.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace weft::checkpoint_internal {
namespace {

using testing::HasSubstr;

Manifest example() {
  Manifest manifest;
  manifest.info = {.step = 123,
                   .epoch = 2,
                   .world_size = 3,
                   .seed = UINT64_MAX,
                   .metadata = {{"rng", "a1b2"}, {"quote\"", "π\n"}},
                   .incarnation = 4};
  manifest.shards = {{"server.safetensors", 4096, 0xDEADBEEF}, {"trainer-0.safetensors", 8, 7}};
  return manifest;
}

// The same manifest with one piece of text replaced and the checksum computed anew.
std::string forged(const std::string& from, const std::string& to) {
  std::string text = render_manifest(example()).value();
  text = absl::StrReplaceAll(text, {{from, to}});
  const size_t tail = text.rfind(",\n  \"crc32\"");
  const std::string body = text.substr(0, tail);
  const auto sum = ::crc32_z(0, reinterpret_cast<const unsigned char*>(body.data()), body.size());
  return absl::StrCat(body, ",\n  \"crc32\": \"", absl::Hex(sum, absl::kZeroPad8), "\"\n}\n");
}

TEST(ManifestTest, ParsesWhatItRenders) {
  const absl::StatusOr<std::string> text = render_manifest(example());
  ASSERT_TRUE(text.ok()) << text.status();
  const absl::StatusOr<Manifest> again = parse_manifest(*text);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->info.step, 123);
  EXPECT_EQ(again->info.epoch, 2);
  EXPECT_EQ(again->info.world_size, 3);
  EXPECT_EQ(again->info.seed, UINT64_MAX);
  EXPECT_EQ(again->info.metadata, example().info.metadata);
  EXPECT_EQ(again->info.incarnation, 4u);
  ASSERT_EQ(again->shards.size(), 2u);
  EXPECT_EQ(again->shards[0].file, "server.safetensors");
  EXPECT_EQ(again->shards[0].bytes, 4096u);
  EXPECT_EQ(again->shards[0].crc32, 0xDEADBEEFu);
}

TEST(ManifestTest, APageWithoutIncarnationIsReadAsOneThatNobodyClaimed) {
  const absl::StatusOr<Manifest> older = parse_manifest(forged("  \"incarnation\": 4,\n", ""));
  ASSERT_TRUE(older.ok()) << older.status();
  EXPECT_EQ(older->info.incarnation, 0u);
  EXPECT_EQ(older->info.step, 123);
  Manifest unclaimed = example();
  unclaimed.info.incarnation = 0;
  EXPECT_EQ(render_manifest(unclaimed)->find("incarnation"), std::string::npos)
      << "the page of an older program";
}

TEST(ManifestTest, NoticesEverySingleBitFlip) {
  const std::string text = render_manifest(example()).value();
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const absl::StatusOr<Manifest> manifest = parse_manifest(flipped);
    EXPECT_EQ(manifest.status().code(), absl::StatusCode::kDataLoss) << "bit " << bit;
  }
}

TEST(ManifestTest, NoticesEveryTruncation) {
  const std::string text = render_manifest(example()).value();
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(parse_manifest(text.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(parse_manifest(text + "\n").ok());
}

// A right checksum does not make a manifest right: its writer may be hostile.
TEST(ManifestTest, RefusesPagesOfWrongContentWithARightChecksum) {
  ASSERT_TRUE(parse_manifest(forged("nothing", "changed")).ok());
  const struct {
    const char* from;
    const char* to;
    const char* fault;
  } cases[] = {
      {"weft-checkpoint", "other", "format"},
      {"\"version\": 1", "\"version\": 2", "version is 2"},
      {"\"version\": 1", "\"version\": \"1\"", "'version'"},
      {"\"step\": 123", "\"step\": -1", "'step'"},
      {"\"step\": 123", "\"step\": 1.5", "'step'"},
      {"\"step\": 123", "\"step\": 1000000000000000", "'step' is"},
      {"\"step\": 123", "\"stop\": 123", "'step'"},
      {"\"epoch\": 2", "\"epoch\": null", "'epoch'"},
      {"\"world_size\": 3", "\"world_size\": 0", "world size 0"},
      {"\"rng\": \"a1b2\"", "\"rng\": 3", "metadata 'rng'"},
      {"\"incarnation\": 4", "\"incarnation\": -4", "'incarnation'"},
      {"\"incarnation\": 4", "\"incarnation\": 1000000000000000", "'incarnation' is"},
      {"\"metadata\"", "\"data\"", "'metadata'"},
      {"\"shards\"", "\"shreds\"", "'shards'"},
      {"\"bytes\": 8", "\"bytes\": -8", "'bytes'"},
      {"\"bytes\": 8", "\"bytes\": 9223372036854775808", "'bytes' is"},
      {"deadbeef", "DEADBEEF", "no valid crc32"},
      {"deadbeef", "0xdeadbe", "no valid crc32"},
      {"trainer-0", "server", "appears twice"},
      {"server.safetensors", "../server.safetensors", "refused as a shard's file name"},
      {"server.safetensors", "/etc/x.safetensors", "refused as a shard's file name"},
      {"server.safetensors", "server.txt", "refused as a shard's file name"},
      {"{\n", "[\n", "no JSON object"},
  };
  for (const auto& test : cases) {
    const absl::StatusOr<Manifest> manifest = parse_manifest(forged(test.from, test.to));
    ASSERT_FALSE(manifest.ok()) << test.from << " -> " << test.to;
    EXPECT_EQ(manifest.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(manifest.status().message()), HasSubstr(test.fault));
  }
}

// The time to read must not grow with the square of the number of keys, as it once did. A manifest
// of the greatest size took hours.
TEST(ManifestTest, ReadsAPageOfManyKeysInTime) {
  constexpr int kKeys = 200000;
  std::string keys;
  for (int i = 0; i < kKeys; ++i) absl::StrAppend(&keys, "\"", i, "\":\"\",");
  const absl::StatusOr<Manifest> read =
      parse_manifest(forged("\"metadata\": {", "\"metadata\": {" + keys));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->info.metadata.size(), kKeys + example().info.metadata.size());
}

TEST(ManifestTest, RefusesFileNamesThatCouldLeaveTheFolder) {
  for (const char* name : {"a.safetensors", "trainer-0.safetensors", "A_b.c.safetensors"}) {
    EXPECT_TRUE(check_shard_file(name).ok()) << name;
  }
  for (const std::string& name :
       {std::string(""), std::string("."), std::string(".."), std::string(".safetensors"),
        std::string(".hidden.safetensors"), std::string("../a.safetensors"),
        std::string("a/b.safetensors"), std::string("/a.safetensors"),
        std::string("a\\b.safetensors"), std::string("a b.safetensors"),
        std::string("a\0b.safetensors", 15), std::string("a\n.safetensors"),
        std::string("manifest.json"), std::string("\xC3\xA4.safetensors"),
        std::string(250, 'a') + ".safetensors"}) {
    EXPECT_EQ(check_shard_file(name).code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

TEST(ManifestTest, RefusesToRenderWhatItWouldNotRead) {
  Manifest manifest = example();
  manifest.info.step = -1;
  EXPECT_FALSE(render_manifest(manifest).ok());
  manifest = example();
  manifest.info.world_size = 0;
  EXPECT_FALSE(render_manifest(manifest).ok());
  manifest = example();
  manifest.info.incarnation = UINT64_MAX;
  EXPECT_FALSE(render_manifest(manifest).ok());
  manifest = example();
  manifest.info.metadata["k"] = "\xFF";
  EXPECT_FALSE(render_manifest(manifest).ok());
  manifest = example();
  manifest.shards[1].file = manifest.shards[0].file;
  EXPECT_FALSE(render_manifest(manifest).ok());
}

}  // namespace
}  // namespace weft::checkpoint_internal
