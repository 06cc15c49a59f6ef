// Compares what this program puts on the wire and into the store with the recorded bytes of each
// protocol version that it speaks (golden/protocol-N.txt).
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/proto/dist_autograd.pb.h"
#include "weft/proto/rref.pb.h"
#include "weft/proto/store.pb.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/codec/wire_name.h"
#include "weft/rpc/rendezvous/death_records.h"
#include "weft/rpc/rendezvous/join_records.h"
#include "weft/rpc/rendezvous/memory_store.h"
#include "weft/rpc/transport/frame_codec.h"
#include "weft/rpc/transport/hello.h"
#include "weft/rpc/transport/internal/record_checksum.h"
#include "weft/rpc/transport/tensor_header.h"

namespace weft::rpc_internal {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Samples = std::map<std::string, std::string>;  // what each name is on the wire

// ---- protobuf messages: one sample per message type, with every field set

const FileDescriptor* const* files() {
  static const FileDescriptor* const all[] = {
      wire::Hello::descriptor()->file(), wire::RRefMessage::descriptor()->file(),
      wire::AutogradPost::descriptor()->file(), wire::StoreCall::descriptor()->file(), nullptr};
  return all;
}

std::unique_ptr<Message> make(const Descriptor* type) {
  return std::unique_ptr<Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

void fill(Message& message, const FieldDescriptor* field, int depth);
void fill_all(Message& message, int depth) {
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    // Of a oneof, only one field can be set. Each of the others has a sample of its own.
    if (field->real_containing_oneof() != nullptr &&
        field != field->real_containing_oneof()->field(0)) {
      continue;
    }
    fill(message, field, depth);
  }
}
void fill(Message& message, const FieldDescriptor* field, int depth) {
  const Reflection& to = *message.GetReflection();
  const int n = field->number() + 100 * depth;
  const bool list = field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return list ? to.AddInt32(&message, field, -n) : to.SetInt32(&message, field, -n);
    case FieldDescriptor::CPPTYPE_INT64:
      return list ? to.AddInt64(&message, field, -n) : to.SetInt64(&message, field, -n);
    case FieldDescriptor::CPPTYPE_UINT32:
      return list ? to.AddUInt32(&message, field, n) : to.SetUInt32(&message, field, n);
    case FieldDescriptor::CPPTYPE_UINT64:
      return list ? to.AddUInt64(&message, field, n) : to.SetUInt64(&message, field, n);
    case FieldDescriptor::CPPTYPE_BOOL:
      return list ? to.AddBool(&message, field, true) : to.SetBool(&message, field, true);
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto* last = field->enum_type()->value(field->enum_type()->value_count() - 1);
      return list ? to.AddEnum(&message, field, last) : to.SetEnum(&message, field, last);
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return list ? to.AddString(&message, field, absl::StrCat("text", n))
                  : to.SetString(&message, field, absl::StrCat("text", n));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (depth == 3) return;  // some messages contain themselves
      return fill_all(list ? *to.AddMessage(&message, field) : *to.MutableMessage(&message, field),
                      depth + 1);
    default:
      FAIL() << field->full_name() << " has a type that no message of Weft had";
  }
}

void add_enum(const google::protobuf::EnumDescriptor* type, Samples& samples) {
  for (int i = 0; i < type->value_count(); ++i) {
    samples[absl::StrCat("value ", type->value(i)->full_name())] =
        absl::StrCat(type->value(i)->number());
  }
}

void add_message(const Descriptor* type, Samples& samples) {
  // The names, because two fields of one type could exchange their numbers.
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    samples[absl::StrCat("field ", field->full_name())] = absl::StrCat(
        field->number(), " ", field->is_repeated() ? "repeated " : "", field->type_name());
  }
  for (int i = 0; i < type->enum_type_count(); ++i) add_enum(type->enum_type(i), samples);
  const std::unique_ptr<Message> message = make(type);
  fill_all(*message, 0);
  samples[absl::StrCat("message ", type->full_name())] = message->SerializeAsString();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->real_containing_oneof() == nullptr) continue;
    const std::unique_ptr<Message> variant = make(type);
    fill(*variant, field, 0);
    samples[absl::StrCat("message ", type->full_name(), " ", field->name())] =
        variant->SerializeAsString();
  }
  for (int i = 0; i < type->nested_type_count(); ++i) add_message(type->nested_type(i), samples);
}

// ---- what is not protobuf

std::vector<Frame> frames() {
  std::vector<Frame> all;
  for (uint8_t kind = kFirstFrameKind; kind <= kLastFrameKind; ++kind) {
    Frame frame;
    FrameHeader& h = frame.header;
    h.kind = static_cast<FrameKind>(kind);
    h.flags = kFlagNested | kFlagError;
    h.source = {1, 2};
    h.destination = {3, 4};
    h.sequence = 5;
    h.acknowledged = 6;
    h.call = 7;
    h.function = 8;
    h.fingerprint = 9;
    h.budget_us = 10;
    h.credit_calls = 11;
    h.credit_bytes = 12;
    h.value_bytes = 4;
    frame.meta = "meta";
    frame.body = "body and headers";
    for (const size_t size : {13, 0, 14}) frame.payloads.emplace_back().size = size;
    all.push_back(std::move(frame));
  }
  return all;
}

std::vector<std::pair<std::string, TensorHeader>> tensors() {
  TensorHeader dense;
  dense.type = WireType::kFloat32;
  dense.sizes = {2, 3};
  TensorHeader image;
  image.type = WireType::kBFloat16;
  image.sizes = {1, 3, 2, 2};
  image.format = WireFormat::kChannelsLast;
  TensorHeader sparse;
  sparse.type = WireType::kFloat64;
  sparse.sizes = {4, 2};
  sparse.layout = WireLayout::kSparseCoo;
  sparse.coalesced = true;
  sparse.sparse_dimensions = 1;
  sparse.nnz = 2;
  TensorHeader undefined;
  undefined.layout = WireLayout::kUndefined;
  return {{"dense", dense}, {"channels_last", image}, {"sparse", sparse}, {"undefined", undefined}};
}

std::string digits(uint64_t number) { return absl::StrCat(number); }

// What numbers on the wire mean.
void add_codes(Samples& samples) {
  const std::pair<const char*, FrameKind> kinds[] = {
      {"call", FrameKind::kCall},          {"reply", FrameKind::kReply},
      {"post", FrameKind::kPost},          {"ack", FrameKind::kAck},
      {"cancel", FrameKind::kCancel},      {"goodbye", FrameKind::kGoodbye},
      {"heartbeat", FrameKind::kHeartbeat}};
  for (const auto& [name, kind] : kinds) {
    samples[absl::StrCat("kind ", name)] = digits(static_cast<uint64_t>(kind));
  }
  const std::pair<const char*, uint64_t> codes[] = {
      {"flag nested", kFlagNested},
      {"flag error", kFlagError},
      {"flag object", kFlagObject},
      {"flag answer", kFlagAnswer},
      {"type float32", static_cast<uint64_t>(WireType::kFloat32)},
      {"type int64", static_cast<uint64_t>(WireType::kInt64)},
      {"type bfloat16", static_cast<uint64_t>(WireType::kBFloat16)},
      {"layout sparse", static_cast<uint64_t>(WireLayout::kSparseCoo)},
      {"format channels_last", static_cast<uint64_t>(WireFormat::kChannelsLast)},
      {"record head", kFixedHeaderBytes},
  };
  for (const auto& [name, code] : codes) samples[absl::StrCat("code ", name)] = digits(code);
}

// As a worker sends them; the samples of messages have all fields.
void add_hellos(Samples& samples) {
  PeerIdentity self{"job/0", "trainer0", {1, 2}, "10.0.0.1:99", "mtls", "trainer"};
  samples["hello of a dialler"] = hello_of(self).SerializeAsString();
  samples["hello of an acceptor"] = answer_of(self, kProtocols.newest).SerializeAsString();
}

// What workers write into the store: one of two ranks has joined, and has declared another dead.
void add_store_keys(Samples& samples) {
  auto store = std::make_shared<MemoryStore>();
  const JoinRequest request{.group = "job",
                            .epoch = 3,
                            .attempt = 4,
                            .name = "trainer0",
                            .rank = 0,
                            .world_size = 1,
                            .address = "10.0.0.1:99"};
  ASSERT_TRUE(join_static_group(*store, request).ok());
  ASSERT_TRUE(DeathRecords(store, "job", 3).declare_dead({0, 1}, {5, 6}, "no answer for 2 s").ok());
  ASSERT_TRUE(mark_ended(*store, "job", 3, 0).ok());
  const JoinKeys keys("job", 3);
  for (const std::string& key :
       {keys.incarnation(0), keys.world_size(), keys.name("trainer0"), keys.member(0),
        keys.ended(0), std::string("weft/job/3/death_record/1")}) {
    const auto value = store->try_get(key);
    ASSERT_TRUE(value.ok() && value->has_value()) << key;
    samples[absl::StrCat("store ", key)] = **value;
  }
  const JoinKeys later("job", 3, 2);
  for (const std::string& key : {keys.claim(0, 4), keys.failure(), keys.indices(), keys.left(0),
                                 later.member(0), later.ended(2)}) {
    samples[absl::StrCat("key ", key)] = "";
  }
}

Samples samples() {
  Samples all;
  for (const FileDescriptor* const* file = files(); *file != nullptr; ++file) {
    for (int i = 0; i < (*file)->message_type_count(); ++i) {
      add_message((*file)->message_type(i), all);
    }
  }
  for (const Frame& frame : frames()) {
    all[absl::StrCat("head ", static_cast<int>(frame.header.kind))] = encode_head(frame);
  }
  for (const auto& [name, header] : tensors()) {
    append_tensor_header(header, false, all[absl::StrCat("tensor ", name)]);
  }
  for (const uint8_t kind : {0, 1, 2, 3, 4}) {
    all[absl::StrCat("checksum of a record ", kind)] = digits(record_checksum(kind, 4, "text"));
  }
  all["hash lib::add"] = absl::StrCat(absl::Hex(hash64("lib::add")));
  add_codes(all);
  add_hellos(all);
  add_store_keys(all);
  return all;
}

// ---- the recorded bytes

std::string golden_file(uint32_t version) {
  return absl::StrCat(WEFT_SOURCE_DIR, "/tests/proto/golden/protocol-", version, ".txt");
}

// A line is NAME TAB BYTES, the bytes in hexadecimal digits.
std::string to_text(const Samples& samples) {
  std::string text;
  for (const auto& [name, bytes] : samples) {
    absl::StrAppend(&text, name, "\t", absl::BytesToHexString(bytes), "\n");
  }
  return text;
}

Samples read_golden(uint32_t version) {
  std::ifstream file(golden_file(version));
  EXPECT_TRUE(file.good()) << golden_file(version);
  Samples samples;
  for (std::string line; std::getline(file, line);) {
    const size_t tab = line.find('\t');
    samples[line.substr(0, tab)] = absl::HexStringToBytes(line.substr(tab + 1));
  }
  return samples;
}

// Whether the message or one inside it has a field that this program does not know.
bool has_unknown_fields(const Message& message) {
  const Reflection& reflection = *message.GetReflection();
  if (!reflection.GetUnknownFields(message).empty()) return true;
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      if (has_unknown_fields(reflection.GetMessage(message, field))) return true;
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      if (has_unknown_fields(reflection.GetRepeatedMessage(message, field, i))) return true;
    }
  }
  return false;
}

// This program reads the bytes as its older self did: it knows every field, and writes it again.
void expect_understood(const std::string& name, const std::string& bytes) {
  const std::vector<std::string> words = absl::StrSplit(name, ' ');
  if (words[0] == "message") {
    const Descriptor* type =
        google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(words[1]);
    ASSERT_NE(type, nullptr) << name << " is gone";
    const std::unique_ptr<Message> message = make(type);
    ASSERT_TRUE(message->ParseFromString(bytes)) << name;
    EXPECT_FALSE(has_unknown_fields(*message)) << name;
    EXPECT_EQ(message->SerializeAsString(), bytes) << name;
  } else if (words[0] == "head") {
    const auto frame = decode_head(bytes, {});
    ASSERT_TRUE(frame.ok()) << name << ": " << frame.status();
    EXPECT_EQ(encode_head(*frame), bytes) << name;
  } else if (words[0] == "hello") {
    EXPECT_TRUE(parse_hello(bytes).ok()) << name;
  } else {
    const Samples now = samples();
    ASSERT_TRUE(now.contains(name)) << name << " is gone";
    EXPECT_EQ(now.at(name), bytes) << name << " is something else now";
  }
}

TEST(GoldenBytesTest, EarlierVersionsAreStillUnderstood) {
  for (uint32_t version = kProtocols.oldest; version < kProtocols.newest; ++version) {
    const Samples recorded = read_golden(version);
    ASSERT_FALSE(recorded.empty());
    for (const auto& [name, bytes] : recorded) {
      SCOPED_TRACE(absl::StrCat("protocol version ", version));
      expect_understood(name, bytes);
    }
  }
}

TEST(GoldenBytesTest, TheNewestVersionIsRecordedAsItIs) {
  const std::string actual = to_text(samples());
  const std::string kept = ::testing::TempDir() + "/protocol.txt";
  std::ofstream(kept) << actual;
  std::ifstream file(golden_file(kProtocols.newest));
  const std::string golden{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(golden, actual)
      << "The wire has changed. If a release speaks this version already, make a new version\n"
      << "(docs/upgrading.md, \"The wire\"). Otherwise record it:\n  cp " << kept << " "
      << golden_file(kProtocols.newest);
}

}  // namespace
}  // namespace weft::rpc_internal
