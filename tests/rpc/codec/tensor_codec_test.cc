#include "weft/rpc/codec/tensor_codec.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <malloc.h>

#include <ATen/Context.h>
#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rpc/transport/tensor_header.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

Frame encoded(std::vector<at::Tensor> tensors, TensorSendOptions options = {}) {
  Frame frame;
  frame.body = "values";
  const absl::Status status = encode_tensors(std::move(tensors), options, frame);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(frame.header.value_bytes, 6u);
  return frame;
}

// Does what the transport does: the payloads' bytes arrive in memory of their own.
Frame carried(const Frame& sent) {
  Frame frame = sent;
  for (Payload& payload : frame.payloads) {
    auto block = std::make_shared<std::vector<std::byte>>(payload.size + 1);
    std::copy_n(payload.data, payload.size, block->data());
    payload = {block->data(), payload.size, block};
  }
  return frame;
}

at::Tensor round_trip(const at::Tensor& tensor) {
  auto tensors = decode_tensors(carried(encoded({tensor})));
  EXPECT_TRUE(tensors.ok()) << tensors.status();
  return tensors.ok() ? tensors->at(0) : at::Tensor();
}

void expect_same(const at::Tensor& sent, const at::Tensor& got) {
  ASSERT_TRUE(got.defined());
  EXPECT_EQ(sent.sizes(), got.sizes());
  EXPECT_EQ(sent.scalar_type(), got.scalar_type());
  EXPECT_EQ(sent.layout(), got.layout());
  EXPECT_FALSE(got.requires_grad());
  EXPECT_TRUE(
      at::equal(sent.is_sparse() ? sent.to_dense() : sent, got.is_sparse() ? got.to_dense() : got));
}

std::string refusal(const at::Tensor& tensor) {
  Frame frame;
  const absl::Status status = encode_tensors({at::ones({1}), tensor}, {}, frame);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor 1 of the message"));
  return std::string(status.message());
}

// LibTorch's types that can be sent.
constexpr at::ScalarType kSendable[] = {at::kByte,
                                        at::kChar,
                                        at::kShort,
                                        at::kInt,
                                        at::kLong,
                                        at::kHalf,
                                        at::kFloat,
                                        at::kDouble,
                                        at::kComplexFloat,
                                        at::kComplexDouble,
                                        at::kBool,
                                        at::kBFloat16,
                                        at::kUInt16,
                                        at::kUInt32,
                                        at::kUInt64,
                                        at::kComplexHalf,
                                        at::kFloat8_e4m3fn,
                                        at::kFloat8_e5m2,
                                        at::kFloat8_e4m3fnuz,
                                        at::kFloat8_e5m2fnuz,
                                        at::kFloat8_e8m0fnu};

// Fills the bytes, because some types have no arithmetic.
at::Tensor filled(at::IntArrayRef sizes, at::ScalarType type) {
  at::Tensor tensor = at::empty(sizes, type);
  auto* bytes = static_cast<uint8_t*>(tensor.mutable_data_ptr());
  for (size_t i = 0; i < tensor.nbytes(); ++i) {
    bytes[i] = static_cast<uint8_t>(type == at::kBool ? i % 2 : i % 251);
  }
  return tensor;
}
std::string bytes_of(const at::Tensor& contiguous) {
  return {static_cast<const char*>(contiguous.const_data_ptr()), contiguous.nbytes()};
}
void expect_same_bytes(const at::Tensor& sent, const at::Tensor& got) {
  ASSERT_TRUE(got.defined());
  EXPECT_EQ(got.scalar_type(), sent.scalar_type());
  EXPECT_EQ(got.sizes(), sent.sizes());
  EXPECT_EQ(bytes_of(got.contiguous()), bytes_of(sent.contiguous()));
}

TEST(TensorCodecTest, EveryTypeTravelsInlinedAndAsPayload) {
  for (const at::ScalarType type : kSendable) {
    for (int64_t count : {0, 1, 7, 5000}) {
      SCOPED_TRACE(std::string(c10::toString(type)) + " " + std::to_string(count));
      const at::Tensor tensor = filled({count, 2}, type);
      expect_same_bytes(tensor, round_trip(tensor));
      expect_same_bytes(tensor.t(), round_trip(tensor.t()));
      expect_same_bytes(tensor.slice(0, 0, count, 2), round_trip(tensor.slice(0, 0, count, 2)));
    }
    const at::Tensor last = filled({2, 3, 20, 20}, type).permute({0, 3, 1, 2});
    expect_same_bytes(last, round_trip(last));
    const at::Tensor sparse = at::_sparse_coo_tensor_unsafe(at::arange(3, at::kLong).view({1, 3}),
                                                            filled({3, 4}, type), {5, 4});
    const at::Tensor got = round_trip(sparse);
    expect_same_bytes(sparse._values(), got._values());
    EXPECT_TRUE(at::equal(sparse._indices(), got._indices()));
  }
}

// If a later LibTorch adds a type, it must be added to one of the two lists, or this test fails.
TEST(TensorCodecTest, EveryOtherTypeOfLibTorchIsRefusedByName) {
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const auto type = static_cast<at::ScalarType>(i);
    if (type == at::ScalarType::Undefined ||
        std::ranges::find(kSendable, type) != std::end(kSendable))
      continue;
    if (c10::isQIntType(type)) continue;  // refused as quantized, below
    SCOPED_TRACE(c10::toString(type));
    EXPECT_THAT(refusal(at::empty({2}, type)), HasSubstr(c10::toString(type)));
  }
}

TEST(TensorCodecTest, ScalarsEmptyAndUndefinedTensorsTravel) {
  expect_same(at::full({}, 2.5), round_trip(at::full({}, 2.5)));
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{0}, {0, 5}, {3, 0, 1000000}, {1, 1, 0, 1}}) {
    expect_same(at::empty(sizes), round_trip(at::empty(sizes)));
  }
  EXPECT_FALSE(round_trip(at::Tensor()).defined());
}

TEST(TensorCodecTest, ViewsTravelAsWhatTheyShow) {
  const at::Tensor base = at::arange(4000.0).view({40, 100});
  const at::Tensor views[] = {
      base.t(),           base.slice(1, 10, 60, 3),  base.select(0, 3),     base.slice(0, 5, 30),
      base.select(1, 99), base.expand({3, 40, 100}), base.narrow(1, 99, 1), base.diagonal()};
  for (const at::Tensor& view : views) expect_same(view, round_trip(view));
  // Of a large tensor, only the bytes that the view shows are sent.
  EXPECT_EQ(encoded({base.slice(0, 5, 30)}).payload_bytes(), 25u * 100 * 4);
}

TEST(TensorCodecTest, SmallViewsOfEveryTypeTravelAsWhatTheyShow) {
  for (const at::ScalarType type :
       {at::kByte, at::kHalf, at::kFloat, at::kDouble, at::kComplexDouble}) {
    const at::Tensor base = at::arange(24).to(type).view({2, 3, 4});
    for (const at::Tensor& view :
         {base.permute({2, 0, 1}), base.transpose(0, 2), base.select(1, 2), base.slice(2, 1, 4, 2),
          base.select(2, 0).t(), base[1][2][3].expand({2, 2}), base.expand({2, 2, 3, 4}),
          base.as_strided({3, 4}, {1, 2}, 5), base.permute({1, 0, 2}).unsqueeze(1)}) {
      ASSERT_FALSE(view.is_contiguous());
      expect_same(view, round_trip(view));
    }
  }
}

TEST(TensorCodecTest, ChannelsLastKeepsItsOrder) {
  const at::Tensor image = at::arange(2 * 3 * 40 * 50.0).view({2, 3, 40, 50});
  const at::Tensor last = image.contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor got = round_trip(last);
  expect_same(last, got);
  EXPECT_TRUE(got.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_EQ(got.strides(), last.strides());
  const at::Tensor volume = at::arange(2 * 3 * 4 * 20 * 30.0).view({2, 3, 4, 20, 30});
  const at::Tensor last3d = volume.contiguous(at::MemoryFormat::ChannelsLast3d);
  const at::Tensor got3d = round_trip(last3d);
  expect_same(last3d, got3d);
  EXPECT_EQ(got3d.strides(), last3d.strides());
}

TEST(TensorCodecTest, LazyConjugatesNegativesAndZerosTravelAsTheirValues) {
  const at::Tensor numbers =
      at::arange(3000.0).to(at::kComplexFloat).mul(c10::complex<float>(1, 2));
  const at::Tensor conj = numbers.conj();
  ASSERT_TRUE(conj.is_conj());
  expect_same(conj.resolve_conj(), round_trip(conj));
  EXPECT_FALSE(round_trip(conj).is_conj());
  const at::Tensor halves = numbers.to(at::kComplexHalf);
  expect_same_bytes(numbers.conj().resolve_conj().to(at::kComplexHalf), round_trip(halves.conj()));
  const at::Tensor negative = at::_neg_view(at::arange(3000.0));
  ASSERT_TRUE(negative.is_neg());
  expect_same(negative.resolve_neg(), round_trip(negative));
  for (int64_t count : {3, 3000}) {
    const at::Tensor zeros = at::_efficientzerotensor({count}, at::kFloat);
    ASSERT_TRUE(zeros._is_zerotensor());
    expect_same(at::zeros({count}), round_trip(zeros));
  }
}

TEST(TensorCodecTest, SparseTensorsKeepIndicesValuesAndWhetherCoalesced) {
  const at::Tensor indices = at::arange(4).remainder(3).view({1, 4});  // one index occurs twice
  const at::Tensor loose = at::sparse_coo_tensor(indices, at::ones({4, 2}), {3, 2});
  for (const at::Tensor& sent : {loose, loose.coalesce()}) {
    const at::Tensor got = round_trip(sent);
    expect_same(sent, got);
    EXPECT_EQ(got.is_coalesced(), sent.is_coalesced());
    EXPECT_EQ(got._nnz(), sent._nnz());
    EXPECT_TRUE(at::equal(got._indices(), sent._indices()));
    EXPECT_TRUE(at::equal(got._values(), sent._values()));
  }
  const at::Tensor none =
      at::sparse_coo_tensor(at::empty({1, 0}, at::kLong), at::empty({0, 2}), {3, 2});
  expect_same(none, round_trip(none));
}

TEST(TensorCodecTest, SparseIndicesOutsideTheTensorAreRefused) {
  Frame frame = carried(
      encoded({at::sparse_coo_tensor(at::arange(3).view({1, 3}), at::ones({3, 2}), {3, 2})}));
  for (int64_t bad : {int64_t{3}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    std::memcpy(frame.payloads[0].data + 8, &bad, 8);
    const absl::Status status = decode_tensors(frame).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("index " + std::to_string(bad)));
  }
}

TEST(TensorCodecTest, WhoSaysThatItIsCoalescedMustBe) {
  const std::array<int64_t, 6> places{0, 1, 1, 2, 0, 3};  // (0, 2), (1, 0), (1, 3)
  const at::Tensor indices = at::empty({2, 3}, at::kLong);
  std::memcpy(indices.mutable_data_ptr(), places.data(), sizeof(places));
  const at::Tensor sent = at::sparse_coo_tensor(indices, at::ones({3}), {2, 4}).coalesce();
  Frame frame = carried(encoded({sent}));
  EXPECT_TRUE(decode_tensors(frame).ok());
  // First the last two indices become equal; then they are in the wrong order.
  for (const auto& columns : {std::array<int64_t, 2>{0, 0}, std::array<int64_t, 2>{3, 0}}) {
    std::memcpy(frame.payloads[0].data + 4 * 8, columns.data(), 2 * 8);
    const absl::Status status = decode_tensors(frame).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("coalesced"));
  }
}

TEST(TensorCodecTest, ABoolIsZeroOrOne) {
  for (int64_t count : {3, 5000}) {
    Frame frame = carried(encoded({at::ones({count}, at::kBool)}));
    if (frame.payloads.empty()) {
      frame.body.back() = 2;
    } else {
      frame.payloads[0].data[count - 1] = std::byte{2};
    }
    const absl::Status status = decode_tensors(frame).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("bool of value 2"));
  }
}

TEST(TensorCodecTest, WhatCannotBeSentIsRefusedByName) {
  EXPECT_THAT(refusal(at::empty({2}, at::TensorOptions().device(at::kMeta))), HasSubstr("meta"));
  EXPECT_THAT(refusal(at::quantize_per_tensor(at::ones({4}), 0.1, 0, at::kQUInt8)),
              HasSubstr("QUInt8"));
  EXPECT_THAT(refusal(at::ones({2, 2}).to_sparse_csr()), HasSubstr("neither dense nor sparse"));
  if (at::hasCUDA()) {
    EXPECT_THAT(refusal(at::ones({2}, at::TensorOptions().device(at::kCUDA))), HasSubstr("cuda:0"));
  }
}

TEST(TensorCodecTest, SharedMemoryUpToTheBoundIsCopiedAndAboveSentInPlace) {
  const int64_t bound = int64_t{1} << 20;
  for (int64_t bytes : {int64_t{100}, int64_t{4000}, bound}) {
    const at::Tensor tensor = at::ones({bytes}, at::kByte);
    const Frame frame = encoded({tensor});
    tensor.fill_(9);
    expect_same(at::ones({bytes}, at::kByte), decode_tensors(carried(frame))->at(0));
  }
  const at::Tensor large = at::ones({bound + 1}, at::kByte);
  const Frame in_place = encoded({large});
  EXPECT_EQ(in_place.payloads.at(0).data, large.data_ptr());
  const Frame snapshot = encoded({large}, {.copy_up_to = std::numeric_limits<size_t>::max()});
  EXPECT_NE(snapshot.payloads.at(0).data, large.data_ptr());
}

TEST(TensorCodecTest, TheTransportMakesTheCopiesThatItCanSendAsTheyAre) {
  std::vector<std::vector<std::byte>> memory;
  size_t most = SIZE_MAX;
  TensorSendOptions options;
  options.copy = [&](const std::byte* data, size_t size) -> std::optional<Payload> {
    if (size > most) return std::nullopt;
    memory.emplace_back(data, data + size);
    return Payload{memory.back().data(), size, nullptr};
  };
  const int64_t least = TensorSendOptions::kLeastCopied;
  const at::Tensor shared = at::arange(least, at::kByte);
  const Frame frame = encoded({shared}, options);
  ASSERT_EQ(memory.size(), 1u);
  EXPECT_EQ(frame.payloads.at(0).data, memory[0].data());
  expect_same(shared, decode_tensors(carried(frame))->at(0));

  const at::Tensor small = at::ones({least - 1}, at::kByte);
  const at::Tensor in_place = at::ones({(int64_t{1} << 20) + 1}, at::kByte);
  EXPECT_EQ(encoded({small, in_place}, options).payloads.size(), 2u);
  EXPECT_EQ(memory.size(), 1u) << "the first is too small, the second is not copied";
  most = 0;
  const Frame cloned = encoded({shared}, options);
  expect_same(shared, decode_tensors(carried(cloned))->at(0));
}

TEST(TensorCodecTest, HandlesThatNobodyWritesThroughDoNotMakeACopy) {
  const at::Tensor kept = at::ones({5000});
  const TensorSendOptions options{.copy_up_to = SIZE_MAX, .holders = 2};
  const auto sent = [&] {
    return encoded(std::vector<at::Tensor>(1, kept), options).payloads.at(0).data;
  };
  EXPECT_EQ(sent(), kept.data_ptr());
  const at::Tensor third = kept;
  EXPECT_NE(sent(), kept.data_ptr());
}

TEST(TensorCodecTest, APayloadIsGivenOnlyIfNobodyElseCanReadIt) {
  const auto given = [](std::vector<at::Tensor> tensors, const TensorSendOptions& options = {}) {
    return encoded(std::move(tensors), options).payloads.at(0).given;
  };
  const auto alone = [](at::Tensor tensor) {
    std::vector<at::Tensor> tensors;
    tensors.push_back(std::move(tensor));
    return tensors;
  };
  const at::Tensor large = at::ones({300000}), small = at::ones({5000});  // 1.2 MB and 20 KB
  EXPECT_FALSE(given({large})) << "it is sent in place";
  EXPECT_TRUE(given({small})) << "a copy is sent";
  EXPECT_TRUE(given({large}, {.copy_up_to = SIZE_MAX}));
  EXPECT_TRUE(given({large}, {.give = true}));
  EXPECT_EQ(encoded({small}, {.give = true}).payloads.at(0).data, small.data_ptr());
  EXPECT_TRUE(given(alone(at::ones({300000}))));
  EXPECT_FALSE(given(alone(large.view({3, 100000})))) << "a view";
  EXPECT_TRUE(given(alone(at::ones({1000, 300}).t()))) << "made contiguous";
}

TEST(TensorCodecTest, MemoryThatNobodyElseHoldsIsNeverCopied) {
  at::Tensor mine = at::ones({5000});
  const void* const data = mine.data_ptr();
  std::vector<at::Tensor> given;
  given.push_back(std::move(mine));
  EXPECT_EQ(encoded(std::move(given)).payloads.at(0).data, data);
  // The memory of a view has another holder, even if the view itself has none.
  at::Tensor base = at::ones({10000});
  given.clear();
  given.push_back(base.slice(0, 0, 5000));
  EXPECT_NE(encoded(std::move(given)).payloads.at(0).data, base.data_ptr());
}

TEST(TensorCodecTest, AFramesPayloadKeepsTheTensorAlive) {
  Frame frame = encoded({at::full({500000}, 3.0)});
  expect_same(at::full({500000}, 3.0), decode_tensors(carried(frame))->at(0));
}

TEST(TensorCodecTest, ReceivedPayloadsAreAdoptedNotCopied) {
  Frame frame = carried(encoded({at::ones({5000})}));
  const std::weak_ptr<void> owner = frame.payloads[0].owner;
  std::byte* const data = frame.payloads[0].data;
  auto tensors = decode_tensors(frame);
  ASSERT_TRUE(tensors.ok());
  frame = Frame();
  EXPECT_EQ((*tensors)[0].data_ptr(), data);
  EXPECT_FALSE(owner.expired());
  tensors->clear();
  EXPECT_TRUE(owner.expired());
}

TEST(TensorCodecTest, ATensorThatRequiresGradTravelsAsItsValue) {
  const at::Tensor leaf = at::ones({3}).requires_grad_();
  expect_same(leaf.detach(), round_trip(leaf));
}

TEST(TensorCodecTest, ManyTensorsKeepTheirPlaces) {
  std::vector<at::Tensor> sent;
  for (int64_t i = 0; i < 40; ++i) {
    sent.push_back(i % 5 == 0 ? at::Tensor() : at::full({i * i}, static_cast<double>(i)));
  }
  const auto got = decode_tensors(carried(encoded(sent)));
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_EQ(got->size(), sent.size());
  for (size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ((*got)[i].defined(), sent[i].defined());
    if (sent[i].defined()) expect_same(sent[i], (*got)[i]);
  }
}

// An accepted header must make a tensor, and must never make an exception.
TEST(TensorCodecTest, AnEmptyTensorOfAbsurdSizesIsRefusedWithoutAnException) {
  TensorHeader header;
  header.sizes = {0, int64_t{1} << 40, int64_t{1} << 40};
  Frame frame;
  append_tensor_header(header, true, frame.body);
  EXPECT_EQ(decode_tensors(frame).status().code(), absl::StatusCode::kInvalidArgument);
}

// Bytes that this process has from malloc. It is 0 under sanitizers, which have their own
// allocator.
size_t from_malloc() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST(TensorCodecTest, SmallTensorsTakeNoMoreMemoryThanIsChargedForThem) {
  constexpr size_t kCount = 65536;
  for (const at::Tensor& one : {at::ones({}, at::kByte), at::ones({1, 1, 1, 1, 1, 1, 1, 1}),
                                at::ones({0}), at::ones({513})}) {
    const Frame frame =
        carried(encoded(std::vector<at::Tensor>(one.nbytes() == 513 * 4 ? 1000 : kCount, one)));
    const size_t before = from_malloc();
    const auto tensors = decode_tensors(frame);
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    const size_t cost = TensorBudget::kTensor + TensorBudget::kDimension * one.dim();
    EXPECT_LE(from_malloc() - before, tensors->size() * cost) << one.sizes();
  }
}

TEST(TensorCodecTest, MoreSmallTensorsThanMayBeReadAreNotSent) {
  Frame frame;
  const std::vector<at::Tensor> scalars(1 << 20, at::ones({}, at::kByte));
  for (const absl::Status& status :
       {encode_tensors(scalars, {}, frame), decode_tensors(frame).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("send many small tensors as one"));
  }
  // 80,000 losses in one message are not too many.
  EXPECT_TRUE(decode_tensors(encoded(std::vector<at::Tensor>(80000, at::ones({})))).ok());
}

}  // namespace
}  // namespace weft
