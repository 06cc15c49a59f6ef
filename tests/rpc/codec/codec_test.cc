// Values survive the wire unchanged, and nothing that a peer can send does harm.
#include "weft/rpc/codec/codec.h"

#include <random>

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rpc/internal/parameter.h"

namespace codec_test {

using ::testing::HasSubstr;
using weft::Codec;
using weft::Reader;
using weft::SchemaBuilder;
using weft::Writer;
using weft::rpc_internal::type_text;

enum class Colour : uint8_t { kRed, kGreen };

struct Point {
  double x = 0;
  int32_t y = 0;
  friend bool operator==(const Point&, const Point&) = default;
};
auto weft_fields(Point& p) { return std::tie(p.x, p.y); }

struct Nothing {
  friend bool operator==(const Nothing&, const Nothing&) = default;
};
auto weft_fields(Nothing&) { return std::tie(); }

struct Tree {
  int64_t value = 0;
  std::vector<Tree> children;
  friend bool operator==(const Tree&, const Tree&) = default;
};
auto weft_fields(Tree& t) { return std::tie(t.value, t.children); }

class Hidden {
 public:
  Hidden() = default;
  explicit Hidden(std::string text) : text_(std::move(text)) {}
  friend bool operator==(const Hidden&, const Hidden&) = default;

 private:
  friend auto weft_fields(Hidden& h) { return std::tie(h.text_, h.points_); }
  std::string text_;
  std::map<std::string, Point> points_ = {{"origin", {}}};
};

// Shaped like google::protobuf::Message.
struct FakeMessage {
  std::string payload;
  bool SerializeToString(std::string* out) const {
    *out = payload;
    return payload != "unserialisable";
  }
  bool ParseFromArray(const void* data, int size) {
    payload.assign(static_cast<const char*>(data), static_cast<size_t>(size));
    return payload != "unparsable";
  }
  std::string GetTypeName() const { return "fake.Message"; }
  friend bool operator==(const FakeMessage&, const FakeMessage&) = default;
};

template <class T>
Reader sent(const T& value) {
  Writer writer;
  Codec<T>::encode(writer, value);
  EXPECT_TRUE(writer.status().ok()) << writer.status();
  EXPECT_GE(writer.body().size(), 1u) << "every value takes at least one byte";
  return Reader(writer.body(), writer.tensors(), writer.references());
}

template <class T>
T round_trip(const T& value) {
  Reader reader = sent(value);
  T decoded = Codec<T>::decode(reader);
  EXPECT_TRUE(reader.finish().ok()) << reader.status();
  return decoded;
}

template <class T>
absl::Status error_of(std::string body) {
  Reader reader(std::move(body), {}, {});
  (void)Codec<T>::decode(reader);
  return reader.finish();
}

std::string bytes_of(uint64_t count, std::string rest = "") {
  return std::string(reinterpret_cast<const char*>(&count), sizeof(count)) + rest;
}

// Makes random values of any sendable type.
class Any {
 public:
  explicit Any(uint64_t seed) : random_(seed) {}
  size_t below(size_t bound) { return random_() % bound; }

  void fill(bool& v) { v = below(2) == 1; }
  template <class T>
  requires(std::is_arithmetic_v<T>) void fill(T& v) { v = static_cast<T>(random_()); }
  void fill(Colour& v) { v = static_cast<Colour>(below(2)); }
  void fill(std::string& v) {
    v.resize(below(20));
    for (char& c : v) c = static_cast<char>(random_());
  }
  template <class T>
  void fill(std::vector<T>& v) {
    v.clear();
    for (size_t i = below(5); i > 0; --i) v.push_back(make<T>());
  }
  template <class T, size_t n>
  void fill(std::array<T, n>& v) {
    for (T& element : v) fill(element);
  }
  template <class K, class V>
  void fill(std::map<K, V>& v) {
    for (size_t i = below(5); i > 0; --i) v.emplace(make<K>(), make<V>());
  }
  template <class K, class V>
  void fill(std::unordered_map<K, V>& v) {
    for (size_t i = below(5); i > 0; --i) v.emplace(make<K>(), make<V>());
  }
  template <class K>
  void fill(std::set<K>& v) {
    for (size_t i = below(5); i > 0; --i) v.insert(make<K>());
  }
  template <class T>
  void fill(std::optional<T>& v) {
    if (below(2) == 1) v = make<T>();
  }
  template <class A, class B>
  void fill(std::pair<A, B>& v) {
    fill(v.first);
    fill(v.second);
  }
  template <class... T>
  void fill(std::tuple<T...>& v) {
    std::apply([&](T&... element) { (fill(element), ...); }, v);
  }
  template <class A, class B>
  void fill(std::variant<A, B>& v) {
    if (below(2) == 1) {
      v = make<A>();
    } else {
      v = make<B>();
    }
  }
  void fill(Point& v) {
    v.x = static_cast<double>(below(1000));  // no NaN: it differs from itself
    fill(v.y);
  }
  void fill(Tree& v) {
    fill(v.value);
    if (below(3) == 0) fill(v.children);
  }

  template <class T>
  T make() {
    T value{};
    fill(value);
    return value;
  }

 private:
  std::mt19937_64 random_;
};

template <class T>
void check_property(uint64_t seed) {
  SCOPED_TRACE(type_text<T>() + " seed " + std::to_string(seed));
  Any any(seed);
  for (int i = 0; i < 200; ++i) {
    const T value = any.make<T>();
    ASSERT_EQ(round_trip(value), value);
  }
}

TEST(CodecTest, DecodingGivesBackWhatWasEncoded) {
  const uint64_t seed = 20261121;
  check_property<bool>(seed);
  check_property<int8_t>(seed);
  check_property<uint64_t>(seed);
  check_property<Colour>(seed);
  check_property<std::string>(seed);
  check_property<std::vector<int64_t>>(seed);
  check_property<std::vector<bool>>(seed);
  check_property<std::vector<std::vector<std::string>>>(seed);
  check_property<std::array<int16_t, 3>>(seed);
  check_property<std::array<std::string, 2>>(seed);
  check_property<std::map<std::string, std::vector<int>>>(seed);
  check_property<std::unordered_map<int, std::string>>(seed);
  check_property<std::set<std::string>>(seed);
  check_property<std::tuple<int, std::string, std::optional<bool>>>(seed);
  check_property<std::pair<int, std::pair<bool, uint8_t>>>(seed);
  check_property<std::variant<std::string, std::vector<int>>>(seed);
  check_property<std::optional<std::optional<int>>>(seed);
  check_property<std::vector<Point>>(seed);
  check_property<Tree>(seed);
}

TEST(CodecTest, ValuesWithoutContentTakeAByteAndSurvive) {
  EXPECT_EQ(round_trip(Nothing()), Nothing());
  EXPECT_EQ(round_trip(std::vector<Nothing>(3)).size(), 3u);
  EXPECT_EQ(round_trip(std::tuple<>()), std::tuple<>());
  EXPECT_EQ(round_trip(std::monostate()), std::monostate());
  EXPECT_EQ((round_trip(std::array<int, 0>())), (std::array<int, 0>()));
}

TEST(CodecTest, OtherSendableTypesSurvive) {
  EXPECT_EQ(round_trip(std::chrono::milliseconds(5)), std::chrono::milliseconds(5));
  EXPECT_EQ(round_trip(Hidden("private")), Hidden("private"));
  EXPECT_EQ(round_trip(FakeMessage{"text"}), FakeMessage{"text"});
  Writer writer;
  Codec<FakeMessage>::encode(writer, FakeMessage{"unserialisable"});
  EXPECT_EQ(writer.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CodecTest, TensorsKeepTheirOrderAndStorage) {
  const std::vector<at::Tensor> tensors = {at::ones({2}), at::Tensor(), at::ones({3})};
  const auto decoded = round_trip(tensors);
  ASSERT_EQ(decoded.size(), 3u);
  EXPECT_TRUE(decoded[0].is_same(tensors[0]));
  EXPECT_FALSE(decoded[1].defined());
  EXPECT_TRUE(decoded[2].is_same(tensors[2]));
}

TEST(CodecTest, MalformedValuesAreRefused) {
  const auto message = [](const absl::Status& status) { return std::string(status.message()); };
  EXPECT_THAT(message(error_of<bool>("\x02")), HasSubstr("neither 0 nor 1"));
  EXPECT_THAT(message(error_of<std::optional<int>>("\x02")), HasSubstr("neither 0 nor 1"));
  EXPECT_THAT(message(error_of<int64_t>("1234")), HasSubstr("ends inside"));
  EXPECT_THAT(message(error_of<std::string>(bytes_of(100, "abc"))), HasSubstr("longer"));
  EXPECT_THAT(message(error_of<std::vector<double>>(bytes_of(2, "12345678"))), HasSubstr("longer"));
  EXPECT_THAT(message(error_of<std::vector<std::string>>(bytes_of(~0ull))),
              HasSubstr("claims more"));
  EXPECT_THAT(message(error_of<std::vector<double>>(bytes_of(1ull << 61, "12345678"))),
              HasSubstr("claims more"));
  EXPECT_THAT(message(error_of<std::variant<bool, int>>("\x02")), HasSubstr("alternative"));
  EXPECT_THAT(message(error_of<std::set<bool>>(bytes_of(2, std::string("\1\1", 2)))),
              HasSubstr("twice"));
  EXPECT_THAT(message(error_of<std::map<bool, bool>>(bytes_of(2, std::string("\1\0\1\0", 4)))),
              HasSubstr("twice"));
  EXPECT_THAT(message(error_of<at::Tensor>("\x01")), HasSubstr("tensor is missing"));
  EXPECT_THAT(message(error_of<FakeMessage>(bytes_of(10, "unparsable"))), HasSubstr("parsed"));
  EXPECT_THAT(message(error_of<bool>(std::string("\1\1", 2))), HasSubstr("more than"));
}

TEST(CodecTest, DeepNestingIsRefusedBeforeTheStackEnds) {
  Tree deep;
  for (int i = 0; i < 40; ++i) deep = Tree{i, {deep}};
  EXPECT_EQ(round_trip(deep), deep);
  std::string body;
  for (int i = 0; i < 100000; ++i) body += bytes_of(0) + bytes_of(1);
  EXPECT_THAT(std::string(error_of<Tree>(body).message()), HasSubstr("too deeply"));
}

TEST(CodecTest, AMessageCannotAskForMuchMoreMemoryThanItHas) {
  using Large = std::array<std::string, 1000>;  // 32 kB, one byte each on the wire if absent
  const size_t count = 1000;
  EXPECT_THAT(std::string(error_of<std::vector<std::optional<Large>>>(
                              bytes_of(count, std::string(count, '\0')))
                              .message()),
              HasSubstr("too much memory"));
}

TEST(CodecTest, MutatedMessagesAreAcceptedOrRefusedNeverMore) {
  using Everything = std::tuple<Tree, std::map<std::string, std::optional<Point>>,
                                std::variant<std::string, std::vector<bool>>, std::vector<double>,
                                std::vector<std::string>, Colour>;
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Any any(seed);
  int accepted = 0;
  const int rounds = 100000;
  for (int i = 0; i < rounds; ++i) {
    Everything value;
    any.fill(std::get<0>(value));
    std::get<1>(value) = {{"k", Point{1, 2}}, {"none", std::nullopt}};
    any.fill(std::get<2>(value));
    any.fill(std::get<3>(value));
    any.fill(std::get<4>(value));
    Writer writer;
    Codec<Everything>::encode(writer, value);
    std::string body = writer.body();
    const bool changed = any.below(4) != 0;
    if (changed) {
      for (size_t k = 1 + any.below(4); k > 0; --k) {
        body[any.below(body.size())] ^= static_cast<char>(1 + any.below(255));
      }
      if (any.below(8) == 0) body.resize(any.below(body.size() + 1));
    }
    Reader reader(body, {}, {});
    const Everything decoded = Codec<Everything>::decode(reader);
    if (reader.finish().ok()) {
      ++accepted;
      // An accepted value is a value like any other: it encodes to as many bytes.
      Writer again;
      Codec<Everything>::encode(again, decoded);
      ASSERT_EQ(again.body().size(), body.size());
    } else {
      ASSERT_TRUE(changed);
    }
  }
  EXPECT_GT(accepted, rounds / 8);
  EXPECT_LT(accepted, rounds);
}

TEST(SchemaTest, TextsAreWhatPeopleExpect) {
  EXPECT_EQ(type_text<bool>(), "bool");
  EXPECT_EQ(type_text<long>(), "i64");
  EXPECT_EQ(type_text<long long>(), "i64");
  EXPECT_EQ(type_text<float>(), "f32");
  EXPECT_EQ(type_text<std::vector<at::Tensor>>(), "list<tensor>");
  EXPECT_EQ((type_text<std::map<std::string, double>>()), "map<string, f64>");
  EXPECT_EQ((type_text<std::tuple<int, bool>>()), "tuple<i32, bool>");
  EXPECT_EQ(type_text<Point>(), "codec_test::Point{f64, i32}");
  EXPECT_EQ(type_text<Tree>(), "codec_test::Tree{i64, list<codec_test::Tree>}");
  EXPECT_EQ(type_text<Colour>(), "codec_test::Colour");
  EXPECT_EQ(type_text<FakeMessage>(), "message fake.Message");
  EXPECT_EQ(type_text<std::chrono::milliseconds>(), "duration<i64, 1/1000>");
}

TEST(SchemaTest, TheStructureForgetsNamesOnly) {
  const auto structure = [](auto value) {
    return type_text<decltype(value)>(SchemaBuilder::Spelling::kStructure);
  };
  EXPECT_EQ(structure(Point()), "{f64, i32}");
  EXPECT_EQ(structure(Tree()), "{i64, list<^0>}");
  EXPECT_EQ(structure(Colour()), "u8");
  EXPECT_EQ(structure(std::pair<int, bool>()), structure(std::tuple<int, bool>()));
  EXPECT_EQ(structure(std::unordered_map<int, bool>()), structure(std::map<int, bool>()));
  EXPECT_NE((type_text<std::unordered_map<int, bool>>()), (type_text<std::map<int, bool>>()));
}

TEST(SchemaTest, WireNamesHaveNoAnonymousNamespaces) {
  using weft::rpc_internal::last_component;
  using weft::rpc_internal::wire_name;
  EXPECT_EQ(wire_name("&lib::{anonymous}::add"), "lib::add");
  EXPECT_EQ(wire_name("&lib::(anonymous namespace)::add"), "lib::add");
  EXPECT_EQ(last_component("lib::Server::pull"), "pull");
  EXPECT_EQ(last_component("pull"), "pull");
  EXPECT_EQ(last_component("lib::f<std::string>"), "f<std::string>");
}

}  // namespace codec_test
