#include "weft/checkpoint/internal/safetensors_header.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::checkpoint_internal {
namespace {

using testing::HasSubstr;

std::string nested(int depth) { return std::string(depth, '['); }

struct BadHeader {
  const char* name;
  std::string json;
  uint64_t data_bytes;
  const char* fault;  // what the message must say
};

std::string f32(const std::string& shape, const std::string& offsets) {
  return R"({"w":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

std::vector<BadHeader> bad_headers() {
  const std::string good = R"("w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  return {
      // Input that is not the one JSON object that the format asks for.
      {"Empty", "", 0, "does not start with '{'"},
      {"LeadingSpace", " {}", 0, "does not start with '{'"},
      {"ByteOrderMark", "\xEF\xBB\xBF{}", 0, "does not start with '{'"},
      {"Array", "[]", 0, "does not start with '{'"},
      {"Unclosed", "{", 0, "not valid JSON"},
      {"UnclosedTensor", R"({"w":{"dtype":"F32")", 0, "not valid JSON"},
      {"TwoObjects", "{}{}", 0, "not valid JSON"},
      {"TrailingLetters", "{} x", 0, "not valid JSON"},
      {"HiddenBehindNul", std::string("{}\0{\"x\":1}", 10), 0, "NUL byte"},
      {"Comment", "{/* */}", 0, "not valid JSON"},
      {"TrailingComma", "{" + good + ",}", 8, "not valid JSON"},
      {"BadUtf8Name", "{\"\xFF\":{}}", 0, "not valid JSON"},
      {"LoneSurrogate", R"({"\ud800":{}})", 0, "not valid JSON"},
      {"RawNewlineInName", "{\"a\nb\":{}}", 0, "not valid JSON"},
      // Values of the wrong kind.
      {"TensorIsNull", R"({"w":null})", 0, "'w' holds null"},
      {"TensorIsNumber", R"({"w":1})", 0, "'w' holds a number"},
      {"TensorIsString", R"({"w":"F32"})", 0, "'w' holds a string"},
      {"TensorIsArray", R"({"w":[]})", 0, "'w' holds an array"},
      {"TensorIsDeepArray", R"({"w":)" + nested(100000), 0, "'w' holds an array"},
      {"DtypeIsNumber", R"({"w":{"dtype":3}})", 0, "tensor 'w': 'dtype' holds a number"},
      {"DtypeIsObject", R"({"w":{"dtype":{}}})", 0, "'dtype' holds an object"},
      {"ShapeIsNumber", f32("2", "[0,8]"), 8, "'shape' holds a number"},
      {"ShapeIsString", f32("\"2\"", "[0,8]"), 8, "'shape' holds a string"},
      {"ShapeHoldsString", f32("[\"2\"]", "[0,8]"), 8, "'shape' holds a string"},
      {"ShapeHoldsArray", f32("[[2]]", "[0,8]"), 8, "'shape' holds an array"},
      {"ShapeHoldsBoolean", f32("[true]", "[0,4]"), 4, "'shape' holds a boolean"},
      {"ShapeHoldsFraction", f32("[2.0]", "[0,8]"), 8, "no 64-bit integer"},
      {"ShapeHoldsNegative", f32("[-2]", "[0,8]"), 8, "negative"},
      {"OffsetsAreObject", f32("[2]", "{}"), 8, "'data_offsets' holds an object"},
      {"OffsetsHoldNegative", f32("[2]", "[-8,0]"), 8, "negative"},
      {"OffsetsHoldNull", f32("[2]", "[null,8]"), 8, "holds null"},
      {"MetadataIsArray", R"({"__metadata__":[]})", 0, "'__metadata__' holds an array"},
      {"MetadataHoldsNumber", R"({"__metadata__":{"step":1}})", 0, "'step' holds a number"},
      {"MetadataHoldsObject", R"({"__metadata__":{"a":{}}})", 0, "'a' holds an object"},
      // Missing, unknown and repeated fields.
      {"NoFields", R"({"w":{}})", 0, "tensor 'w': no dtype"},
      {"NoDtype", R"({"w":{"shape":[2],"data_offsets":[0,8]}})", 8, "no dtype"},
      {"NoShape", R"({"w":{"dtype":"F32","data_offsets":[0,8]}})", 8, "no shape"},
      {"NoOffsets", R"({"w":{"dtype":"F32","shape":[2]}})", 8, "no data_offsets"},
      {"UnknownField", R"({"w":{"strides":[1]}})", 8, "unknown field 'strides'"},
      {"FieldTwice", R"({"w":{"dtype":"F32","dtype":"F32"}})", 8, "'dtype' appears twice"},
      {"TensorTwice", "{" + good + "," + good + "}", 8, "'w' appears twice"},
      {"TensorTwiceByEscape", "{" + good + R"(,"\u0077":{}})", 8, "'w' appears twice"},
      {"MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", 0, "appears twice"},
      {"MetadataKeyTwice", R"({"__metadata__":{"a":"1","a":"2"}})", 0, "'a' appears twice"},
      // Dtypes.
      {"UnknownDtype", R"({"w":{"dtype":"F31"}})", 8, "unknown dtype 'F31'"},
      {"LowerCaseDtype", R"({"w":{"dtype":"f32"}})", 8, "unknown dtype"},
      {"EmptyDtype", R"({"w":{"dtype":""}})", 8, "unknown dtype"},
      {"ComplexDtype", R"({"w":{"dtype":"C64"}})", 8, "unknown dtype 'C64'"},
      // Sizes.
      {"ShapeTooSmall", f32("[1]", "[0,8]"), 8, "need 4 bytes, data_offsets give 8"},
      {"ShapeTooLarge", f32("[3]", "[0,8]"), 8, "need 12 bytes"},
      {"EmptyShapeWithBytes", f32("[0]", "[0,8]"), 8, "need 0 bytes"},
      {"ScalarOfTwo", f32("[]", "[0,8]"), 8, "need 4 bytes"},
      {"ProductOverflows", f32("[4294967296,4294967296]", "[0,8]"), 8, "size overflows"},
      {"ProductOverflowsToRight", f32("[9223372036854775807,2,2]", "[0,8]"), 8, "overflows"},
      {"BytesOverflow", f32("[4611686018427387904]", "[0,8]"), 8, "size overflows"},
      {"OverflowBehindZero", f32("[0,4294967296,4294967296]", "[0,0]"), 0, "size overflows"},
      {"DimensionAbove63Bits", f32("[9223372036854775808]", "[0,8]"), 8, "exceeds 2^63"},
      {"DimensionAbove64Bits", f32("[18446744073709551616]", "[0,8]"), 8, "no 64-bit integer"},
      {"SixtyFiveDimensions",
       f32(
           "[1" +
               [] {
                 std::string ones;
                 for (int i = 0; i < 64; ++i) ones += ",1";
                 return ones;
               }() +
               "]",
           "[0,4]"),
       4, "more than 64 dimensions"},
      // Offsets.
      {"NoOffsetNumbers", f32("[2]", "[]"), 8, "needs two numbers"},
      {"OneOffset", f32("[2]", "[0]"), 8, "needs two numbers"},
      {"ThreeOffsets", f32("[2]", "[0,8,8]"), 8, "more than two numbers"},
      {"OffsetsBackwards", f32("[2]", "[8,0]"), 8, "run backwards"},
      {"PastTheEnd", f32("[2]", "[0,8]"), 7, "the file has 7 bytes"},
      {"FarPastTheEnd", f32("[2]", "[18446744073709551607,18446744073709551615]"), 8,
       "the file has"},
      {"GapBefore", f32("[2]", "[8,16]"), 16, "8 unused bytes before it"},
      {"BytesLeftOver", f32("[2]", "[0,8]"), 9, "1 bytes after the last tensor"},
      {"BytesWithoutTensors", "{}", 4, "4 bytes after the last tensor"},
      {"Overlap", "{" + good + R"(,"v":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12,
       "overlaps another tensor"},
      {"SamePlaceTwice", "{" + good + R"(,"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       8, "overlaps another tensor"},
      {"GapBetween", "{" + good + R"(,"v":{"dtype":"U8","shape":[1],"data_offsets":[9,10]}})", 10,
       "tensor 'v': 1 unused bytes before it"},
  };
}

class BadHeaderTest : public testing::TestWithParam<BadHeader> {};

TEST_P(BadHeaderTest, IsRefusedWithItsFault) {
  const absl::StatusOr<SafetensorsHeader> header =
      parse_header(GetParam().json, GetParam().data_bytes);
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(header.status().message()), HasSubstr(GetParam().fault));
}

INSTANTIATE_TEST_SUITE_P(Curated, BadHeaderTest, testing::ValuesIn(bad_headers()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SafetensorsHeaderTest, TakesEveryDtypeAtItsSize) {
  for (const auto& [name, size] : std::vector<std::pair<std::string, int>>{{"F64", 8},
                                                                           {"F32", 4},
                                                                           {"F16", 2},
                                                                           {"BF16", 2},
                                                                           {"I64", 8},
                                                                           {"I32", 4},
                                                                           {"I16", 2},
                                                                           {"I8", 1},
                                                                           {"U8", 1},
                                                                           {"BOOL", 1},
                                                                           {"U64", 8},
                                                                           {"U32", 4},
                                                                           {"U16", 2},
                                                                           {"F8_E4M3", 1},
                                                                           {"F8_E5M2", 1},
                                                                           {"F8_E8M0", 1}}) {
    const std::string bytes = std::to_string(3 * size);
    const absl::StatusOr<SafetensorsHeader> header = parse_header(
        R"({"w":{"dtype":")" + name + R"(","shape":[3,1],"data_offsets":[0,)" + bytes + "]}}",
        3 * size);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(to_string(header->tensors[0].dtype), name);
    EXPECT_THAT(header->tensors[0].shape, testing::ElementsAre(3, 1));
  }
}

TEST(SafetensorsHeaderTest, TakesScalarsEmptyTensorsAnyOrderAndPadding) {
  const absl::StatusOr<SafetensorsHeader> header = parse_header(
      R"({"b":{"data_offsets":[4,4],"shape":[0,7],"dtype":"I64"},"__metadata__":{"k":"v"},)"
      R"("a":{"shape":[],"data_offsets":[0,4],"dtype":"F32"}}    )",
      4);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_TRUE(header->tensors[0].shape.empty());
  EXPECT_EQ(header->metadata.at("k"), "v");
}

TEST(SafetensorsHeaderTest, ParsesWhatItRenders) {
  SafetensorsHeader header;
  header.metadata = {{"quote\"", "line\nend"}, {"π", ""}};
  header.tensors = {{"layer.weight", StateDtype::kF64, {2, 3}, 0, 48},
                    {"a \"name\"\\", StateDtype::kBool, {5}, 48, 53}};
  const absl::StatusOr<std::string> text = render_header(header);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->size() % 8, 0u);
  unsigned char length[8];
  std::copy_n(text->begin(), 8, length);
  EXPECT_EQ(parse_header_length(length, text->size() + 53).value(), text->size() - 8);
  const absl::StatusOr<SafetensorsHeader> again = parse_header(text->substr(8), 53);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->metadata, header.metadata);
  ASSERT_EQ(again->tensors.size(), 2u);
  EXPECT_EQ(again->tensors[1].name, header.tensors[1].name);
  EXPECT_EQ(again->tensors[0].shape, header.tensors[0].shape);
}

TEST(SafetensorsHeaderTest, RefusesToWriteReservedAndUnreadableNames) {
  SafetensorsHeader header;
  header.tensors = {{"__metadata__", StateDtype::kU8, {0}, 0, 0}};
  EXPECT_EQ(render_header(header).status().code(), absl::StatusCode::kInvalidArgument);
  header.tensors[0].name = "\xFF";
  EXPECT_THAT(std::string(render_header(header).status().message()), HasSubstr("\\xff"));
  header.tensors.clear();
  header.metadata = {{"k", "\xC3"}};
  EXPECT_EQ(render_header(header).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SafetensorsHeaderTest, ChecksTheAnnouncedLength) {
  const unsigned char huge[8] = {255, 255, 255, 255, 255, 255, 255, 255};
  EXPECT_THAT(std::string(parse_header_length(huge, 1 << 20).status().message()),
              HasSubstr("the cap is 100000000"));
  const unsigned char eight[8] = {8};
  EXPECT_EQ(parse_header_length(eight, 16).value(), 8u);
  EXPECT_THAT(std::string(parse_header_length(eight, 15).status().message()),
              HasSubstr("the file has 15 in all"));
  const unsigned char big_endian[8] = {0, 0, 0, 0, 0, 0, 0, 8};
  EXPECT_FALSE(parse_header_length(big_endian, 1 << 20).ok());
}

TEST(SafetensorsHeaderTest, ShowsHostileNamesShortAndPrintable) {
  EXPECT_EQ(shown("a\n\x1b[2J"), "'a\\n\\x1b[2J'");
  EXPECT_LT(shown(std::string(100000, 'x')).size(), 100u);
}

}  // namespace
}  // namespace weft::checkpoint_internal
