// Writes the seeds of the fuzz targets. It makes them with the encoders whose output the targets
// read:
//
//   weft_fuzz_seeds tests/fuzz/corpus
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>
#include <zlib.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/checkpoint/internal/manifest.h"
#include "weft/checkpoint/internal/safetensors_header.h"
#include "weft/dist_autograd/passes/autograd_wire.h"
#include "weft/proto/store.pb.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/rendezvous/join_records.h"
#include "weft/rpc/same_host/handshake.h"
#include "weft/rpc/transport/frame_codec.h"
#include "weft/rpc/transport/hello.h"
#include "weft/rpc/transport/status_wire.h"
#include "weft/rpc/transport/tensor_header.h"
#include "weft/rref/internal/rref_wire.h"

namespace weft::fuzz {
namespace {

using namespace weft::rpc_internal;
using namespace weft::rref_internal;
using namespace weft::dist_autograd_internal;
using namespace weft::checkpoint_internal;
using Seeds = std::map<std::string, std::string>;  // by file name

constexpr WorkerId kA{0, 1}, kB{1, 1};

template <class T>
std::string number(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}
std::string chunk(const std::string& text) {
  return number(static_cast<uint16_t>(text.size())) + text;
}
// The same text, cut short.
std::string cut(const std::string& text) { return text.substr(0, text.size() * 2 / 3); }

// ---- frames

wire::Meta meta() {
  wire::Meta meta;
  meta.set_chain_creator(kA.bits());
  meta.set_chain_number(3);
  meta.set_chain_depth(2);
  meta.add_references(
      encode(rref_internal::Reference{kB, {kA, 1}, {kA, 2}, {kA, 3}, {7, "at::Tensor"}, 77}));
  meta.set_creation(encode(rref_internal::Creation{{kA, 4}, {kA, 5}, {7, "at::Tensor"}, 77}));
  meta.set_target(encode(rref_internal::Target{{kA, 4}, {7, "at::Tensor"}, 77}));
  wire::AutogradMetadata autograd;
  dist_autograd_internal::to_wire({.context = {kA, 1},
                                   .send = {kB, 2},
                                   .requires_grad = {0, 2},
                                   .histories = {{kA, 2, 1, {2}}}},
                                  autograd);
  meta.set_autograd(autograd.SerializeAsString());
  meta.add_held_sources(kA.bits());
  meta.add_held_calls(9);
  return meta;
}

absl::Status failure() {
  return add_hop(raised_at(with_ran(absl::UnknownError("threw \xff"), Ran::kYes), "worker1"),
                 "worker1/train");
}

Frame frame(FrameKind kind, std::vector<size_t> payloads) {
  Frame frame;
  frame.header.kind = kind;
  frame.header.source = kA;
  frame.header.destination = kB;
  frame.header.sequence = 5;
  frame.header.acknowledged = 4;
  frame.header.call = 3;
  frame.header.function = 0x1234567890abcdef;
  frame.header.budget_us = 1000000;
  frame.meta = kind == FrameKind::kReply ? rpc_internal::encode_status_meta(failure())
                                         : meta().SerializeAsString();
  frame.body = "values";
  frame.header.value_bytes = 4;
  for (const size_t size : payloads) {
    auto block = std::make_shared<std::string>(size, 'p');
    frame.payloads.push_back({reinterpret_cast<std::byte*>(block->data()), size, block});
  }
  return frame;
}

std::string record(uint8_t kind, const std::string& content) {
  return number(kind) + number(static_cast<uint32_t>(content.size())) + content;
}
std::string message(const std::string& text, uint8_t cut_at) {
  return number(static_cast<uint16_t>(text.size())) + number(cut_at) + text;
}

std::string hello(bool refused) {
  wire::Hello hello;
  hello.set_protocol(kProtocols.oldest);
  hello.set_newest_protocol(kProtocols.newest);
  hello.set_group("job");
  hello.set_name("worker0");
  hello.set_worker(kA.bits());
  hello.set_expected(kB.bits());
  hello.set_address("127.0.0.1:1");
  if (refused) rpc_internal::encode_status(failure(), *hello.mutable_refused());
  return hello.SerializeAsString();
}

void add_frames(std::map<std::string, Seeds>& all) {
  const std::string call = rpc_internal::encode_head(frame(FrameKind::kCall, {}));
  const std::string tensors = rpc_internal::encode_head(frame(FrameKind::kPost, {8, 0, 16}));
  const std::string reply = rpc_internal::encode_head(frame(FrameKind::kReply, {}));
  all["frame_codec"] = {{"call", call}, {"post", tensors}, {"reply", reply}, {"cut", cut(call)}};
  all["frame_stream"] = {
      {"hello", message(record(0, hello(false)), 3) + message(record(1, call), 200)},
      {"refused", message(record(0, hello(true)), 200)},
      {"packed", message(record(1, call) + record(1, tensors + std::string(24, 'p')), 7)},
      {"chunks", message(record(2, tensors) + record(3, std::string(8, 'p')), 50) +
                     message(record(3, std::string(10, 'p')), 0) +
                     message(record(3, std::string(6, 'p')) + record(1, reply), 9)},
      {"empty_chunks", message(record(2, tensors) + record(3, "") + record(3, ""), 1)},
      {"cut", message(cut(record(1, call)), 1)}};
  wire::Meta error;
  error.ParseFromString(rpc_internal::encode_status_meta(failure()));
  all["meta"] = {{"call", meta().SerializeAsString()},
                 {"error", error.SerializeAsString()},
                 {"cut", cut(meta().SerializeAsString())}};
}

// ---- tensors

std::string headers(const std::vector<std::pair<TensorHeader, bool>>& list) {
  std::string body;
  for (const auto& [header, inlined] : list) append_tensor_header(header, inlined, body);
  return body;
}

TensorHeader tensor(WireType type, std::vector<int64_t> sizes) {
  TensorHeader header;
  header.type = type;
  header.sizes = std::move(sizes);
  return header;
}

void add_tensors(std::map<std::string, Seeds>& all) {
  TensorHeader scalar;
  scalar.inlined = "abcd";
  TensorHeader image = tensor(WireType::kUint8, {1, 3, 2, 2});
  image.format = WireFormat::kChannelsLast;
  TensorHeader volume = tensor(WireType::kBFloat16, {1, 2, 1, 2, 2});
  volume.format = WireFormat::kChannelsLast3d;
  TensorHeader flags = tensor(WireType::kBool, {2});
  flags.inlined = std::string_view("\0\1", 2);
  TensorHeader sparse = tensor(WireType::kFloat32, {4, 2});
  sparse.layout = WireLayout::kSparseCoo;
  sparse.coalesced = true;
  sparse.sparse_dimensions = 1;
  sparse.nnz = 2;
  TensorHeader undefined;
  undefined.layout = WireLayout::kUndefined;
  const TensorHeader empty = tensor(WireType::kComplex128, {0, 5});

  const std::string dense = headers({{scalar, true}, {image, false}, {volume, false}});
  const std::string rest =
      headers({{flags, true}, {undefined, false}, {empty, true}, {sparse, false}});
  const auto payloads = [](std::vector<uint16_t> sizes) {
    std::string text = number(static_cast<uint8_t>(sizes.size()));
    for (const uint16_t size : sizes) text += number(size);
    return text;
  };
  all["tensor_header"] = {{"dense", payloads({12, 16}) + dense},
                          {"rest", payloads({16, 16}) + rest},
                          {"cut", payloads({12, 16}) + cut(dense)}};
  const std::string two = number(uint8_t{2});
  const auto indices = [](int64_t a, int64_t b) { return chunk(number(a) + number(b)); };
  const std::string values = chunk(std::string(16, 'v'));
  all["tensor_codec"] = {
      {"dense", two + chunk(std::string(12, 'i')) + chunk(std::string(16, 'v')) + dense},
      {"sparse", two + indices(1, 3) + values + rest},
      {"sparse_not_coalesced", two + indices(3, 3) + values + rest},
      {"sparse_index_outside", two + indices(1, 4) + values + rest}};
}

// ---- messages

void add_messages(std::map<std::string, Seeds>& all) {
  const RRefId rref{kA, 1};
  const ForkId fork{kB, 2};
  Seeds& references = all["rref_messages"];
  const rref_internal::Message messages[] = {
      rref_internal::ForkRequest{rref, fork, 3, 77},
      rref_internal::ForkAccept{rref, fork},
      rref_internal::ForkReject{rref, fork, rref_internal::RejectReason::kWithdrawn},
      rref_internal::ChildAccept{rref, fork},
      rref_internal::UserDelete{rref, fork, true, 4},
      rref_internal::DeleteAck{rref, fork},
      rref_internal::CancelFork{kB, rref, ForkId{kA, 3}, true, 5},
      rref_internal::CancelAck{kB, rref, fork, true},
      rref_internal::Settled{6}};
  for (size_t i = 0; i < std::size(messages); ++i) {
    references[absl::StrCat("message", i)] = number(uint8_t{0}) + encode(messages[i]);
  }
  const rref_internal::TypeTag type{7, "std::vector<float>"};
  references["reference"] =
      number(uint8_t{1}) + encode(rref_internal::Reference{kB, rref, {kA, 2}, {kA, 3}, type, 77});
  references["creation"] =
      number(uint8_t{2}) + encode(rref_internal::Creation{rref, {kA, 2}, type, 77});
  references["target"] = number(uint8_t{3}) + encode(rref_internal::Target{rref, type, 77});

  const dist_autograd_internal::PassId pass{{kA, 1}, kA, 1};
  const std::vector<dist_autograd_internal::PassHistory> histories{{kA, 3, 1, {2}}};
  dist_autograd_internal::PassReport report;
  report.counts = {kB, 2, {{kA, 1}}, {{kA, 2}}};
  report.waiting = true;
  report.unfed = {{kA, 9}};
  const dist_autograd_internal::PassHeader header{
      pass, dist_autograd_internal::BackwardMode::kEager, true, absl::Seconds(1), histories};
  const dist_autograd_internal::PassFailure why{failure(), kB, kA, "MulBackward0", {kA, 2}};
  std::vector<dist_autograd_internal::AutogradMessage> posts;
  dist_autograd_internal::GradMessage grad{.header = header, .number = 1};
  grad.entries.push_back({.send = {kB, 2}, .slots = 3, .present = {0, 2}});
  grad.reports = {report};
  posts.emplace_back(std::move(grad));
  posts.emplace_back(
      dist_autograd_internal::ActivateMessage{header, 2, {{kB, 2}, {kB, 3}}, {report}});
  posts.emplace_back(dist_autograd_internal::SealMessage{pass, 3});
  posts.emplace_back(dist_autograd_internal::ReportMessage{pass, {report}});
  posts.emplace_back(dist_autograd_internal::PublishMessage{pass, histories});
  posts.emplace_back(dist_autograd_internal::FailMessage{pass, why});
  posts.emplace_back(dist_autograd_internal::AbortMessage{pass, why});
  posts.emplace_back(dist_autograd_internal::ReleaseContextMessage{{kA, 1}, 1});
  posts.emplace_back(dist_autograd_internal::HoldsContextMessage{{kA, 1}});
  Seeds& autograd = all["autograd_messages"];
  for (size_t i = 0; i < posts.size(); ++i) {
    wire::AutogradPost post;
    dist_autograd_internal::to_wire(posts[i], post);
    if (i == 3) dist_autograd_internal::to_wire(posts[4], *post.add_piggybacked());
    autograd[absl::StrCat("post", i)] = number(uint8_t{0}) + post.SerializeAsString();
  }
  autograd["metadata"] = number(uint8_t{1}) + meta().autograd();

  Seeds& records = all["store_records"];
  const rpc_internal::MemberRecord member{{{3, 2}, "worker3", 3, "127.0.0.1:29500"}, 1};
  records["member"] = number(uint8_t{0}) + member.encode();
  records["death records"] =
      number(uint8_t{1}) + absl::StrCat(kA.bits(), " ", kB.bits(), " was not heard of\n",
                                        WorkerId{2, 1}.bits(), " ", kB.bits(), " left \xc3");
  const auto store_call = [](uint8_t author, wire::StoreCall call) {
    call.set_version(1);
    const std::string bytes = call.SerializeAsString();
    return number(author) + number(static_cast<uint16_t>(bytes.size())) + bytes;
  };
  wire::StoreCall wait, set, add, exchange, hold, erase;
  wait.mutable_read()->add_keys("a");
  wait.mutable_read()->add_keys("n");
  wait.mutable_read()->set_until(wire::StoreCall::Read::ALL_EXIST);
  set.mutable_set()->set_key("a");
  set.mutable_set()->set_value("value");
  set.set_change(5);
  add.mutable_add()->set_key("n");
  add.mutable_add()->set_amount(-3);
  exchange.mutable_compare_set()->set_key("a");
  exchange.mutable_compare_set()->set_expected("value");
  exchange.mutable_compare_set()->set_desired("other");
  hold.mutable_hold()->set_key("h");
  erase.mutable_erase()->set_key("a");
  const std::string end = number(uint8_t{0}) + number(uint16_t{0});
  all["store_calls"] = {
      {"wait", store_call(0, wait) + store_call(1, set) + store_call(2, add)},
      {"owned",
       store_call(1, set) + store_call(2, set) + store_call(2, exchange) + store_call(1, exchange)},
      {"repeated", store_call(0, set) + store_call(0, set) + store_call(0, erase)},
      {"held", store_call(0, hold) + store_call(0, hold) + end + store_call(0, hold)}};

  wire::MembershipPost phase_end;
  phase_end.mutable_phase_end()->set_phase(1);
  all["quiescence_core"] = {
      {"bytes", std::string("\0\0\2\6\1", 5) + chunk(phase_end.SerializeAsString())}};
  all["launch_environment"] = {
      {"torchrun",
       "RANK=1\nWORLD_SIZE=4\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=host\n"
       "MASTER_PORT=29500\nTORCHELASTIC_RUN_ID=job\nTORCHELASTIC_RESTART_COUNT=2\n"
       "TORCHELASTIC_USE_AGENT_STORE=True\nROLE_NAME=x\nWEFT_GROUP_EPOCH=1"},
      {"slurm",
       "SLURM_PROCID=3\nSLURM_STEP_NUM_TASKS=4\nSLURM_LOCALID=0\nSLURM_NODEID=1\nSLURM_JOB_ID=7\n"
       "SLURM_STEP_ID=0\nSLURM_STEP_NODELIST=n[01-02]\nSLURM_STEP_TASKS_PER_NODE=1(x1),3\n"
       "SLURM_RESTART_COUNT=1"},
      {"openmpi",
       "OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_RANK=1\n"
       "OMPI_COMM_WORLD_LOCAL_SIZE=2\nPMIX_NAMESPACE=1126760449"},
      {"mpich", "PMI_RANK=0\nPMI_SIZE=2\nMPI_LOCALRANKID=0\nMPI_LOCALNRANKS=2\nMASTER_PORT=4000"},
      {"kubernetes",
       "PET_NODE_RANK=1\nPET_NNODES=2\nPET_NPROC_PER_NODE=1\nPET_MASTER_ADDR=job-0.job\n"
       "JOB_COMPLETION_INDEX=1\nWEFT_WORLD_SIZE=2\nWEFT_LAUNCHER=kubernetes"},
      {"bad", "RANK=5\nWORLD_SIZE=4\nMASTER_ADDR=\nMASTER_PORT=99999"}};
}

// ---- typed values: the number of a type, then the bytes of its codec

void add_values(std::map<std::string, Seeds>& all) {
  const auto text = [](const std::string& s) { return number(uint64_t{s.size()}) + s; };
  const std::string strings = number(uint64_t{2}) + text("a") + text("bc");
  const auto of = [](uint8_t type, const std::string& value) { return number(type) + value; };
  all["typed_values"] = {
      {"doubles", of(0, number(uint64_t{2}) + number(1.0) + number(-2.5))},
      {"strings", of(1, strings)},
      {"bools", of(2, number(uint64_t{3}) + std::string("\1\0\1", 3))},
      {"map", of(3, number(uint64_t{1}) + text("key") + number(uint64_t{1}) + number(int32_t{5}))},
      {"map_key_twice", of(4, number(uint64_t{2}) + number(int64_t{1}) + text("a") +
                                  number(int64_t{1}) + text("b"))},
      {"tuple", of(6, number(int32_t{1}) + number(uint8_t{1}) + text("x") + number(uint64_t{0}))},
      {"list_of_nothing", of(7, number(uint64_t{3}) + std::string(3, '\0'))},
      {"tree", of(12, text("root") + number(uint64_t{1}) + text("leaf") + number(uint64_t{0}))},
      {"step_id", of(13, number(uint32_t{1}) + number(uint32_t{1}) + number(uint64_t{2}) +
                             number(uint64_t{3}))},
      {"step_update", of(14, number(uint64_t{1}) + number(0.1) + number(1.0))},
      {"step_decision", of(15, number(uint8_t{2}) + number(1.0) + number(2.0))},
      {"durable", of(17, number(uint64_t{4}) + number(int32_t{8}) + text("disk full"))}};
}

// ---- files

std::string gzip(const std::string& text) {
  std::string out(::compressBound(text.size()) + 64, '\0');
  z_stream stream = {};
  ::deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  ::deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

void add_files(std::map<std::string, Seeds>& all) {
  checkpoint_internal::SafetensorsHeader header;
  header.metadata = {{"format", "pt"}, {"k\"ey", "\u00e4"}};
  header.tensors = {{"parameter/a", checkpoint_internal::StateDtype::kF32, {2, 1}, 0, 8},
                    {"optimizer/0/momentum", checkpoint_internal::StateDtype::kI64, {}, 8, 16},
                    {"parameter/b", checkpoint_internal::StateDtype::kBool, {2}, 16, 18},
                    {"parameter/none", checkpoint_internal::StateDtype::kF16, {0, 7}, 18, 18}};
  const std::string state = checkpoint_internal::render_header(header).value();
  const std::string json = state.substr(8);
  const std::string data = std::string(16, 'd') + std::string("\0\1", 2);
  all["safetensors_header"] = {
      {"all", number(uint32_t{18}) + json},
      {"other_size", number(uint32_t{17}) + json},
      {"cut", number(uint32_t{18}) + cut(json)},
      {"overflow", number(uint32_t{16}) +
                       "{\"x\":{\"dtype\":\"F32\",\"shape\":[4194305,4194305,211106198978564],"
                       "\"data_offsets\":[0,16]}}"}};

  const std::string shard = state + data;
  checkpoint_internal::Manifest manifest;
  manifest.info.step = 3;
  manifest.info.seed = 77;
  manifest.info.metadata["note"] = "x";
  manifest.shards = {{"owner.safetensors", shard.size(), 0x1234abcd}, {"b-2.safetensors", 0, 0}};
  const std::string page = checkpoint_internal::render_manifest(manifest).value();
  const std::string body = page.substr(0, page.rfind(",\n  \"crc32\""));
  manifest.info.incarnation = 2;
  const std::string claimed = checkpoint_internal::render_manifest(manifest).value();
  all["manifest"] = {{"page", page},
                     {"body", body},
                     {"empty", "{"},
                     {"cut", cut(body)},
                     {"claimed", claimed.substr(0, claimed.rfind(",\n  \"crc32\""))}};

  const auto text = [](const std::string& s) { return number(static_cast<uint8_t>(s.size())) + s; };
  const std::string metadata =
      text("optimizer/0/name") + text("sgd") + text("optimizer/0/line/l") + text("12");
  all["checkpoint"] = {{"whole", number(uint8_t{2}) + chunk(metadata) + shard},
                       {"cut_shard", number(uint8_t{2}) + chunk(metadata) + cut(shard)},
                       {"other_shard", number(uint8_t{1}) + chunk(body) + shard},
                       {"as_it_is", number(uint8_t{0}) + chunk(page) + shard}};

  const std::string labels = std::string("\0\0\x08\1\0\0\0\3", 8) + "abc";
  const std::string images = std::string("\0\0\x08\3\0\0\0\1\0\0\0\2\0\0\0\2", 16) + "abcd";
  const auto file = [](bool pack, uint8_t dimensions, const std::string& content) {
    return number(static_cast<uint8_t>(pack)) + number(static_cast<uint8_t>(dimensions - 1)) +
           content;
  };
  all["idx_file"] = {{"labels", file(true, 1, labels)},
                     {"images", file(true, 3, images)},
                     {"gzip", file(false, 3, gzip(images))},
                     {"gzip_damaged", file(false, 3, cut(gzip(images)))},
                     {"not_packed", file(false, 1, labels)},
                     {"huge", file(true, 1, std::string("\0\0\x08\1\x40\0\0\0", 8))}};
}

// ---- shared memory: the size of the ring, and then steps of shared_rings_fuzz.cc

void add_rings(std::map<std::string, Seeds>& all) {
  const auto step = [](uint8_t what, const std::string& rest = {}) { return number(what) + rest; };
  const auto write = [&](uint8_t size) {
    return step(4, number(uint8_t{2}) + number(size) + std::string(size, 'r'));
  };
  const std::string commit = step(6), ask = step(7), read = step(8), release = step(9);
  const auto overwrite = [&](uint8_t where, uint16_t offset, const std::string& text) {
    return step(where, number(offset) + number(static_cast<uint8_t>(text.size())) + text);
  };
  const auto move = [&](int8_t by, uint8_t which) { return step(3, number(by) + number(which)); };
  const std::string push = step(10, std::string("\1\2\3\0", 4)), take = step(11, "\1\5");
  std::string full(1, '\0');
  for (int i = 0; i < 5; ++i) full += write(48);
  full += commit + ask + read + read + release + write(30) + commit;
  std::string around(1, '\0');
  for (uint8_t i = 0; i < 20; ++i) around += write(17 + i % 24) + commit + read + release;
  const std::string two = std::string(1, '\1') + write(20) + write(0) + commit;
  all["shared_rings"] = {{"full", full},
                         {"around", around},
                         {"serial", two + overwrite(0, 8, "\7") + read},
                         {"size", two + overwrite(0, 0, "\xff\xff") + read},
                         {"padding", two + overwrite(0, 4, std::string(2, '\0')) + read},
                         {"tail", two + read + move(-2, 0) + read + read},
                         {"head", two + move(9, 1) + ask + write(3)},
                         {"returns", std::string(1, '\2') + push + push + take + push + take},
                         {"returns_tail", std::string(1, '\2') + push + move(-3, 2) + take}};
}

// ---- lent memory: one byte per event, and its arguments

void add_memory(std::map<std::string, Seeds>& all) {
  const auto bytes = [](std::initializer_list<uint8_t> list) {
    return std::string(list.begin(), list.end());
  };
  const std::string lent = bytes({0, 4}) + bytes({3, 0, 0, 0});
  const std::string dropped = bytes({6, 0, 1});
  const std::string at_unit_8 = number(uint16_t{2048}) + bytes({0});
  const std::string descriptor =
      bytes({5, 0, 9, 0}) + at_unit_8 + number(uint16_t{4096}) + bytes({0});
  all["lent_blocks"] = {
      {"given_back", lent + dropped},
      {"sent_home", lent + bytes({6, 0, 0}) + lent + dropped},
      {"copied_out", lent + bytes({8, 15, 1}) + bytes({2, 0}) + lent + dropped + dropped},
      {"forged_descriptor", lent + descriptor + dropped},
      {"forged_return", lent + bytes({7, 1, 0, 1, 0}) + number(uint16_t{0}) + bytes({0}) + dropped},
      {"dead_peer", lent + bytes({9, 0, 0}) + dropped}};
}

// ---- frames in shared memory: the size of the ring, and then steps of ring_frames_fuzz.cc

void add_ring_frames(std::map<std::string, Seeds>& all) {
  const auto step = [](uint8_t what, const std::string& rest = {}) { return number(what) + rest; };
  const auto push = [&](std::vector<uint16_t> payloads) {
    std::string text = step(3, number(uint8_t{9}) + number(static_cast<uint8_t>(payloads.size())));
    for (const uint16_t size : payloads) text += number(size);
    return text;
  };
  const std::string pump = step(5), read = step(6, "\xff");
  const auto peer = [&](uint8_t kind, const std::string& content) {
    return step(2, number(static_cast<uint8_t>(kind - 1)) + chunk(content));
  };
  const std::string open = number(uint32_t{1}) + number(uint32_t{104}) + number(uint64_t{8});
  const std::string large(1, '\3'), tiny(1, '\0');
  const std::string head = encode_head(frame(FrameKind::kCall, {8}));
  all["ring_frames"] = {
      {"small", large + push({10}) + push({0, 20}) + pump + read},
      {"large", tiny + push({2000}) + push({5}) + push({1500, 0}) + pump + read + pump + read},
      {"frame", large + peer(1, head + "01234567") + read},
      {"pieces", large + peer(2, open) + peer(3, number(uint64_t{1}) + head) + read},
      {"close", large + push({1000}) + pump + peer(4, "") + read},
      {"overwritten", large + push({10}) + pump + step(0, number(uint16_t{20}) + "\3abc") + read},
      {"moved", large + push({10}) + pump + step(1, "\5\1") + read}};
}

void add_introductions(std::map<std::string, Seeds>& all) {
  Introduction introduction;
  introduction.slot = 5;
  introduction.ring_bytes = 1 << 17;
  introduction.hello = hello_of({"group", "worker1", kA, "host:1;there"});
  Introduction refusal = introduction;
  refusal.ring_bytes = 0;
  refusal.nonce = 7;
  encode_status(failure(), *refusal.hello.mutable_refused());
  introduction.hello.set_expected(kB.bits());
  all["introduction"] = {{"hello", encode_introduction(introduction)},
                         {"refused", encode_introduction(refusal)},
                         {"cut", cut(encode_introduction(introduction))}};
}

}  // namespace
}  // namespace weft::fuzz

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::map<std::string, weft::fuzz::Seeds> all;
  weft::fuzz::add_frames(all);
  weft::fuzz::add_tensors(all);
  weft::fuzz::add_messages(all);
  weft::fuzz::add_values(all);
  weft::fuzz::add_files(all);
  weft::fuzz::add_rings(all);
  weft::fuzz::add_memory(all);
  weft::fuzz::add_ring_frames(all);
  weft::fuzz::add_introductions(all);
  for (const auto& [target, seeds] : all) {
    const std::filesystem::path folder = std::filesystem::path(argv[1]) / target;
    std::filesystem::create_directories(folder);
    for (const auto& [name, content] : seeds) {
      std::ofstream(folder / ("seed_" + name), std::ios::binary) << content;
    }
  }
  return 0;
}
