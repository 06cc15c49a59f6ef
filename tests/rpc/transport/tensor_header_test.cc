#include "weft/rpc/transport/tensor_header.h"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

// Bytes that this thread has allocated since `watch`.
thread_local bool watching = false;
thread_local size_t allocated = 0;

void* take(size_t size) {
  if (watching) allocated += size;
  if (void* block = std::malloc(size == 0 ? 1 : size)) return block;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t size) { return take(size); }
void* operator new[](size_t size) { return take(size); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }
void operator delete[](void* block, size_t) noexcept { std::free(block); }

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr uint8_t kInlined = 1, kCoalesced = 2;

// A header made by hand, so that every field can lie.
struct Raw {
  uint8_t type = 7, layout = 1, format = 0, flags = 0;
  std::vector<int64_t> sizes = {};
  int dimensions = -1;  // -1: as many as sizes
  int sparse = 0;
  int64_t nnz = 0;
  std::string bytes = {};

  std::string text() const {
    std::string out;
    for (uint8_t byte : {type, layout, format, flags,
                         static_cast<uint8_t>(dimensions < 0 ? sizes.size() : dimensions)}) {
      out.push_back(static_cast<char>(byte));
    }
    for (int64_t size : sizes) append(out, size);
    if (layout == 2) {
      out.push_back(static_cast<char>(sparse));
      append(out, nnz);
    }
    return out + bytes;
  }
  static void append(std::string& out, int64_t value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
};

struct Bad {
  std::string name;
  std::string text;
  std::vector<size_t> payloads;
};

class BadHeaders {
 public:
  BadHeaders() {
    sizes();
    codes();
    payload_counts();
    inlined();
    sparse();
    truncations();
  }
  std::vector<Bad> cases;

 private:
  void add(std::string name, const Raw& raw, std::vector<size_t> payloads = {}) {
    cases.push_back({std::move(name), raw.text(), std::move(payloads)});
  }

  void sizes() {
    for (int64_t bad : {int64_t{-1}, int64_t{-2}, kMin, kMin + 1, kMax, kMax - 1, int64_t{1} << 62,
                        (int64_t{1} << 40) + 1, int64_t{-1} << 32}) {
      for (size_t place = 0; place < 3; ++place) {
        for (int64_t beside : {0, 1, 4}) {
          Raw raw{.sizes = {beside, beside, beside}};
          raw.sizes[place] = bad;
          add("size " + std::to_string(bad) + " beside " + std::to_string(beside), raw, {0});
          add("the same with the bytes it wraps to", raw,
              {static_cast<size_t>(bad) * static_cast<size_t>(beside * beside) * 4});
        }
      }
    }
    // Products that wrap around 2^64, some of them to a harmless number. With a zero, the strides
    // overflow.
    const int64_t k20 = int64_t{1} << 20, k32 = int64_t{1} << 32, k40 = int64_t{1} << 40;
    const std::vector<std::vector<int64_t>> products = {{4194305, 4194305, 211106198978564},
                                                        {k32, k32},
                                                        {k40, k40},
                                                        {k40, k40, k40},
                                                        {k32, k32, 4},
                                                        {k32 + 1, k32 - 1},
                                                        {k40, k20, 16},
                                                        {k40, k40, 0},
                                                        {0, k40, k40},
                                                        {k40, 0, k40},
                                                        {0, k32, k32},
                                                        {k20, k20, k20, k20},
                                                        {3, k40, k20},
                                                        {6700417, 641, k32},
                                                        {k40, 64},
                                                        {0, kMax},
                                                        {0, kMin}};
    for (const auto& list : products) {
      size_t wrapped = 4;
      for (int64_t size : list) wrapped *= static_cast<size_t>(size);
      for (size_t payload : {wrapped, size_t{0}, size_t{4}}) {
        add("sizes that overflow", {.sizes = list}, {payload});
      }
      add("sizes that overflow, inlined", {.flags = kInlined, .sizes = list});
    }
    // Consistent except for one byte or one element.
    for (size_t payload :
         {size_t{0}, size_t{1}, size_t{23}, size_t{25}, size_t{48}, size_t{1} << 62, ~size_t{0}}) {
      add("a payload of another size", {.sizes = {2, 3}}, {payload});
    }
    for (int dimensions : {65, 66, 100, 128, 200, 255}) {
      add("too many dimensions",
          {.sizes = std::vector<int64_t>(static_cast<size_t>(dimensions), 1)}, {4});
      add("too many dimensions, and no sizes", {.dimensions = dimensions}, {4});
    }
    for (int more : {1, 2, 64}) add("sizes are missing", {.sizes = {}, .dimensions = more}, {4});
  }

  void codes() {
    for (int type : {0, 22, 23, 24, 32, 64, 127, 128, 200, 255}) {
      add("unknown dtype", {.type = static_cast<uint8_t>(type), .sizes = {1}}, {4});
    }
    for (int layout : {3, 4, 7, 127, 128, 255}) {
      add("unknown layout", {.layout = static_cast<uint8_t>(layout), .sizes = {1}}, {4});
    }
    for (int format : {3, 4, 127, 128, 255}) {
      add("unknown format", {.format = static_cast<uint8_t>(format), .sizes = {1, 1, 1, 1}}, {4});
    }
    for (int flag = 2; flag < 8; ++flag) {
      add("unknown flag", {.flags = static_cast<uint8_t>(1 << flag), .sizes = {1}}, {4});
      add("unknown flag, inlined",
          {.flags = static_cast<uint8_t>((1 << flag) | kInlined), .sizes = {1}, .bytes = "abcd"});
    }
    add("a dense tensor that is coalesced", {.flags = kCoalesced, .sizes = {1}}, {4});
    for (size_t dimensions : {0, 1, 2, 3, 5, 6, 64}) {
      add("channels_last of other than 4 dimensions",
          {.format = 1, .sizes = std::vector<int64_t>(dimensions, 1)}, {4});
    }
    for (size_t dimensions : {0, 1, 3, 4, 6, 64}) {
      add("channels_last_3d of other than 5 dimensions",
          {.format = 2, .sizes = std::vector<int64_t>(dimensions, 1)}, {4});
    }
    add("undefined with a type", {.type = 7, .layout = 0});
    add("undefined with a format", {.type = 0, .layout = 0, .format = 1});
    add("undefined with a flag", {.type = 0, .layout = 0, .flags = kInlined});
    add("undefined with sizes", {.type = 0, .layout = 0, .sizes = {1}});
    add("undefined with a payload", {.type = 0, .layout = 0}, {4});
  }

  void payload_counts() {
    add("no payload", {.sizes = {1}});
    add("one payload too many", {.sizes = {1}}, {4, 4});
    add("an empty payload too many", {.sizes = {1}}, {4, 0});
    add("an empty tensor without its payload", {.sizes = {0}});
    cases.push_back(
        {"two tensors, one payload", Raw{.sizes = {1}}.text() + Raw{.sizes = {1}}.text(), {4}});
    cases.push_back({"two tensors, payloads exchanged",
                     Raw{.sizes = {1}}.text() + Raw{.sizes = {2}}.text(),
                     {8, 4}});
    cases.push_back({"payloads and no tensor", "", {4}});
  }

  void inlined() {
    for (int64_t count : {513, 1024, 1 << 20}) {
      add("too large to be inlined", {.flags = kInlined,
                                      .sizes = {count},
                                      .bytes = std::string(static_cast<size_t>(count) * 4, 'x')});
    }
    add("inlined bytes are missing", {.flags = kInlined, .sizes = {2}, .bytes = "seven b"});
    add("a byte follows", {.flags = kInlined, .sizes = {2}, .bytes = "nine byte"});
    add("inlined with a payload", {.flags = kInlined, .sizes = {1}, .bytes = "four"}, {4});
  }

  void sparse() {
    const Raw good{.layout = 2, .sizes = {10, 3}, .sparse = 1, .nnz = 2};  // 16 and 24 bytes
    auto changed = [&](auto change) {
      Raw raw = good;
      change(raw);
      return raw;
    };
    for (int64_t nnz : {int64_t{-1}, kMin, kMax, (int64_t{1} << 40) + 1, int64_t{1} << 62,
                        int64_t{1}, int64_t{3}, int64_t{0}}) {
      add("sparse nnz " + std::to_string(nnz), changed([&](Raw& r) { r.nnz = nnz; }), {16, 24});
      add("sparse nnz, wrapped", changed([&](Raw& r) { r.nnz = nnz; }),
          {static_cast<size_t>(nnz) * 8 + 1, static_cast<size_t>(nnz) * 12});
    }
    for (int dimensions : {3, 4, 64, 128, 255, 0, 2}) {
      add("sparse dimensions", changed([&](Raw& r) { r.sparse = dimensions; }), {16, 24});
    }
    add("sparse, inlined", changed([&](Raw& r) { r.flags = kInlined; }), {16, 24});
    add("sparse channels_last", changed([&](Raw& r) {
          r.format = 1;
          r.sizes = {10, 3, 1, 1};
        }),
        {16, 24});
    for (const std::vector<size_t>& payloads : std::vector<std::vector<size_t>>{{},
                                                                                {16},
                                                                                {24},
                                                                                {24, 16},
                                                                                {16, 23},
                                                                                {15, 24},
                                                                                {16, 24, 0},
                                                                                {16, 24, 24},
                                                                                {0, 0},
                                                                                {40},
                                                                                {16, 0},
                                                                                {0, 24}}) {
      add("sparse payloads", good, payloads);
    }
    add("sparse nnz times values wraps",
        {.layout = 2, .sizes = {10, int64_t{1} << 40}, .sparse = 1, .nnz = int64_t{1} << 24},
        {size_t{8} << 24, 0});
    add("sparse whole wraps",
        {.layout = 2, .sizes = {int64_t{1} << 40, int64_t{1} << 40}, .sparse = 2, .nnz = 1},
        {16, 4});
    add("sparse without room for its values",
        {.layout = 2, .sizes = {int64_t{1} << 40, 0}, .sparse = 1, .nnz = int64_t{1} << 40},
        {0, 0});
  }

  void truncations() {
    for (const Raw& raw :
         {Raw{.sizes = {2, 3, 4}}, Raw{.flags = kInlined, .sizes = {2}, .bytes = "8 bytes."},
          Raw{.layout = 2, .flags = kCoalesced, .sizes = {10, 3}, .sparse = 1, .nnz = 2},
          Raw{.format = 1, .sizes = {1, 2, 3, 4}}}) {
      const std::string whole = raw.text();
      for (size_t size = 1; size < whole.size(); ++size) {
        cases.push_back({"cut after " + std::to_string(size), whole.substr(0, size), {96}});
      }
    }
  }
};

TEST(TensorHeaderTest, EveryBadHeaderIsRefusedAndNothingIsAllocatedOnItsWord) {
  const BadHeaders bad;
  EXPECT_GE(bad.cases.size(), 400u);
  for (const Bad& item : bad.cases) {
    SCOPED_TRACE(item.name + ", " + std::to_string(item.text.size()) + " bytes");
    allocated = 0;
    watching = true;
    const auto headers = parse_tensor_headers(item.text, item.payloads);
    watching = false;
    EXPECT_EQ(headers.status().code(), absl::StatusCode::kInvalidArgument);
    // Memory for the headers read so far, their sizes and the message must be in proportion to the
    // text.
    EXPECT_LE(allocated, 4096 + 16 * item.text.size());
  }
}

TEST(TensorHeaderTest, AnErrorNamesTheTensorAndWhatIsWrong) {
  const std::string text = Raw{.sizes = {1}}.text() + Raw{.type = 99, .sizes = {1}}.text();
  const std::vector<size_t> payloads = {4, 4};
  const absl::Status status = parse_tensor_headers(text, payloads).status();
  EXPECT_EQ(status.message(), "tensor 1 of the message: dtype 99 is unknown");
}

TEST(TensorHeaderTest, GoodHeadersSurviveTheRoundTrip) {
  TensorHeader dense;
  dense.type = WireType::kBFloat16;
  dense.sizes = {2, 3, 4, 5};
  dense.format = WireFormat::kChannelsLast;
  TensorHeader inlined;
  inlined.type = WireType::kInt64;
  inlined.sizes = {};
  inlined.inlined = "12345678";
  TensorHeader sparse;
  sparse.layout = WireLayout::kSparseCoo;
  sparse.sizes = {10, 3};
  sparse.sparse_dimensions = 1;
  sparse.nnz = 2;
  sparse.coalesced = true;
  TensorHeader undefined;
  undefined.layout = WireLayout::kUndefined;
  TensorHeader empty;
  empty.sizes = {0, 5};
  std::string text;
  append_tensor_header(dense, false, text);
  append_tensor_header(inlined, true, text);
  append_tensor_header(sparse, false, text);
  append_tensor_header(undefined, false, text);
  append_tensor_header(empty, true, text);
  const std::vector<size_t> payloads = {240, 16, 24};
  const auto got = parse_tensor_headers(text, payloads);
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_EQ(got->size(), 5u);
  EXPECT_EQ((*got)[0].type, WireType::kBFloat16);
  EXPECT_EQ((*got)[0].sizes, dense.sizes);
  EXPECT_EQ((*got)[0].format, WireFormat::kChannelsLast);
  EXPECT_EQ((*got)[0].first_payload, 0u);
  EXPECT_EQ((*got)[0].payload_count, 1u);
  EXPECT_EQ((*got)[1].inlined, "12345678");
  EXPECT_EQ((*got)[1].payload_count, 0u);
  EXPECT_EQ((*got)[2].first_payload, 1u);
  EXPECT_EQ((*got)[2].payload_count, 2u);
  EXPECT_EQ((*got)[2].nnz, 2);
  EXPECT_TRUE((*got)[2].coalesced);
  EXPECT_EQ((*got)[3].layout, WireLayout::kUndefined);
  EXPECT_EQ((*got)[4].sizes, empty.sizes);
}

TEST(TensorHeaderTest, EveryTypeHasASize) {
  const size_t sizes[] = {0, 1, 1, 2, 4, 8, 2, 4, 8, 8, 16, 1, 2, 2, 4, 8, 1, 1, 1, 1, 1, 4, 0};
  for (size_t code = 0; code < std::size(sizes); ++code) {
    EXPECT_EQ(element_size(static_cast<WireType>(code)), sizes[code]) << code;
  }
}

// Whatever the bytes are, an accepted header uses exactly the payload that came.
TEST(TensorHeaderTest, MutatedHeadersNeverClaimMoreThanCame) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const std::string good = Raw{.sizes = {2, 3}}.text() +
                           Raw{.flags = kInlined, .sizes = {2}, .bytes = "8 bytes."}.text() +
                           Raw{.layout = 2, .sizes = {10, 3}, .sparse = 1, .nnz = 2}.text();
  const std::vector<size_t> payloads = {24, 16, 24};
  ASSERT_TRUE(parse_tensor_headers(good, payloads).ok());
  for (int i = 0; i < 100000; ++i) {
    std::string text = good;
    for (uint64_t n = 1 + random() % 3; n > 0; --n) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    const auto headers = parse_tensor_headers(text, payloads);
    if (!headers.ok()) {
      EXPECT_EQ(headers.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    size_t used = 0;
    for (const TensorHeader& header : *headers) {
      used += header.payload_count;
      if (header.layout != WireLayout::kDense) continue;
      size_t bytes = element_size(header.type);
      for (int64_t size : header.sizes) bytes *= static_cast<size_t>(size);
      EXPECT_EQ(bytes,
                header.payload_count == 1 ? payloads[header.first_payload] : header.inlined.size());
    }
    EXPECT_EQ(used, payloads.size());
  }
}

// 16 MiB of scalars of one byte would become 1.2 GB of tensors.
TEST(TensorHeaderTest, ManySmallTensorsAreRefusedBeforeTheyTakeMoreThanTheBudget) {
  const std::string scalar = Raw{.type = 1, .flags = kInlined, .bytes = "x"}.text();
  const auto text = [](const std::string& one, size_t count) {
    std::string all;
    all.reserve(one.size() * count);
    for (; count > 0; --count) all += one;
    return all;
  };
  EXPECT_TRUE(parse_tensor_headers(text(scalar, 65536), {}).ok());
  const std::string flood = text(scalar, (size_t{16} << 20) / scalar.size());
  allocated = 0;
  watching = true;
  const absl::Status status = parse_tensor_headers(flood, {}).status();
  watching = false;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("too much memory"), HasSubstr("send many small tensors as one")));
  EXPECT_LT(allocated, TensorBudget::kFree + TensorBudget::kPerByte * flood.size());
  // Undefined tensors count too. Tensors with enough elements are not refused.
  const std::string undefined = Raw{.type = 0, .layout = 0}.text();
  EXPECT_FALSE(parse_tensor_headers(text(undefined, 1 << 20), {}).ok());
  const std::string row =
      Raw{.type = 1, .flags = kInlined, .sizes = {32}, .bytes = std::string(32, 'x')}.text();
  EXPECT_TRUE(parse_tensor_headers(text(row, 1 << 18), {}).ok());
}

}  // namespace
}  // namespace weft
