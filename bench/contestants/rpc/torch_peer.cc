// The contestants "torch uv" and "torch shm": torch.distributed.rpc as libtorch_cpu.so exports it,
// driven without Python.
//
// Without Python its request callback serves only built-in ATen operators, and these rows need no
// others:
//
//   `send` is aten::slice, whose strided result travels as a small copy.
//   `echo` is aten::alias: the tensor that arrived goes back, as with the other contestants.
//   `rref_life` is a remote aten::add, a to_here, and the drop of the reference.
#include <cmath>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <torch/csrc/distributed/autograd/autograd.h>
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/rpc/request_callback_no_python.h>
#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/distributed/rpc/tensorpipe_agent.h>
#include <torch/csrc/distributed/rpc/utils.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/frontend/script_type_parser.h>
#include <torch/csrc/jit/runtime/operator.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/bench/contestants/contestants.h"

namespace weft::bench {
namespace {

namespace dist_autograd = torch::distributed::autograd;
namespace rpc = torch::distributed::rpc;

constexpr int kServerRank = 0;
constexpr int kClientRank = 1;
constexpr int kWorldSize = 2;
constexpr char kHost[] = "127.0.0.1";
constexpr float kRpcTimeoutSeconds = 60;

using Store = c10::intrusive_ptr<c10d::TCPStore>;
using Operator = std::shared_ptr<torch::jit::Operator>;
using Future = c10::intrusive_ptr<c10::ivalue::Future>;

Store open_store(bool is_server, uint16_t port) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = is_server;
  options.numWorkers = kWorldSize;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>(kHost, options);
}

// Joins the group of two. Waits for the other process.
std::shared_ptr<rpc::RpcAgent> start_agent(const Store& store, int rank,
                                           const std::string& transport) {
  // For TCP use only "basic": "mpt_uv" has priority and made small calls several times slower.
  std::vector<std::string> channels = {"basic"};
  if (transport == "shm") channels.push_back("cma");
  rpc::TensorPipeRpcBackendOptions options(rpc::kDefaultNumWorkerThreads,
                                           std::vector<std::string>{transport}, std::move(channels),
                                           kRpcTimeoutSeconds, /*init_method=*/"");
  auto agent = std::make_shared<rpc::TensorPipeAgent>(
      store, rank == kServerRank ? "server" : "client", static_cast<rpc::worker_id_t>(rank),
      kWorldSize, std::move(options), std::unordered_map<std::string, rpc::DeviceMap>{},
      std::vector<c10::Device>{}, std::make_unique<rpc::RequestCallbackNoPython>());
  // The agent asserts that it has a type resolver when it decodes any message. Messages of
  // distributed autograd hold dictionaries, whose types are looked up here by name.
  auto unit = std::make_shared<torch::jit::CompilationUnit>();
  agent->setTypeResolver(std::make_shared<rpc::TypeResolver>([unit](
                                                                 const c10::QualifiedName& name) {
    return c10::StrongTypePtr(unit, torch::jit::ScriptTypeParser().parseType(name.qualifiedName()));
  }));
  rpc::RpcAgent::setCurrentRpcAgent(agent);
  dist_autograd::DistAutogradContainer::init(rank);
  agent->start();
  return agent;
}

void stop_agent(const std::shared_ptr<rpc::RpcAgent>& agent) {
  agent->join(/*shutdown=*/true, /*timeout=*/2);
  agent->shutdown();
}

class TorchServer final : public Server {
 public:
  explicit TorchServer(std::string transport) : transport_(std::move(transport)) {}

  absl::StatusOr<std::string> listen() override {
    store_ = open_store(/*is_server=*/true, /*port=*/0);
    return absl::StrCat(store_->getPort());
  }

  absl::Status serve() override {
    agent_ = start_agent(store_, kServerRank, transport_);
    return absl::OkStatus();
  }

  int64_t live_objects() override {
    return std::stoll(rpc::RRefContext::getInstance().getDebugInfo().at("num_owner_rrefs"));
  }

  void close() override { stop_agent(agent_); }

 private:
  const std::string transport_;
  Store store_;
  std::shared_ptr<rpc::RpcAgent> agent_;
};

class TorchClient final : public Client {
 public:
  explicit TorchClient(std::string transport) : transport_(std::move(transport)) {}

  absl::Status connect(const std::string& address) override {
    int port = 0;
    if (!absl::SimpleAtoi(address, &port)) return absl::InvalidArgumentError("no port: " + address);
    agent_ = start_agent(open_store(/*is_server=*/false, static_cast<uint16_t>(port)), kClientRank,
                         transport_);
    server_ = &agent_->getWorkerInfo("server");
    return absl::OkStatus();
  }

  absl::Status add() override { return check_sum(wait(call(add_, {left_, right_, 1})).toTensor()); }

  absl::Status start_add(int slot) override {
    if (static_cast<size_t>(slot) >= slots_.size()) slots_.resize(slot + 1);
    slots_[slot] = call(add_, {left_, right_, 1});
    return absl::OkStatus();
  }

  absl::Status finish_add(int slot) override { return check_sum(wait(slots_.at(slot)).toTensor()); }

  absl::Status send(int64_t bytes) override {
    const int64_t stride = stamp_argument(bytes);
    const at::Tensor sample =
        wait(call(slice_, {argument_, 0, 0, argument_.numel(), stride})).toTensor();
    return check_stamp(sample, 1);
  }

  absl::Status echo(int64_t bytes) override {
    const int64_t stride = stamp_argument(bytes);
    const at::Tensor back = wait(call(alias_, {argument_})).toTensor();
    if (back.numel() != argument_.numel()) return absl::DataLossError("echo changed the size");
    return check_stamp(back, stride);
  }

  // The caller keeps no reference, but this stack copies the tensor all the same.
  absl::Status give(int64_t bytes) override {
    at::Tensor tensor = at::empty({bytes / static_cast<int64_t>(sizeof(float))});
    const int64_t stride = stamp(tensor);
    const int64_t elements = tensor.numel();
    const Future future = call(slice_, {std::move(tensor), 0, 0, elements, stride});
    return check_stamp(wait(future).toTensor(), 1);
  }

  bool mixes() const override { return true; }

  absl::Status autograd_round(int depth, int width) override {
    auto& container = dist_autograd::DistAutogradContainer::getInstance();
    const int64_t context = container.newContext()->contextId();
    const at::Tensor left = at::ones({2, 2}).requires_grad_();
    const at::Tensor right = at::ones({2, 2}).requires_grad_();
    std::vector<at::Tensor> branches(static_cast<size_t>(width), left);
    for (int hop = 0; hop < depth; ++hop) {
      std::vector<Future> sums;
      for (const at::Tensor& branch : branches) sums.push_back(call(add_, {branch, right, 1}));
      for (size_t i = 0; i < sums.size(); ++i) branches[i] = wait(sums[i]).toTensor();
    }
    at::Tensor loss = branches[0].sum();
    for (size_t i = 1; i < branches.size(); ++i) loss = loss + branches[i].sum();
    dist_autograd::backward(context, {loss});
    const auto gradients = container.retrieveContext(context)->getGradients();
    const bool are_right = gradients.size() == 2 && is_all(gradients.at(left), width) &&
                           is_all(gradients.at(right), width * depth);
    container.releaseContext(context);
    return are_right ? absl::OkStatus() : absl::DataLossError("wrong gradients");
  }

  absl::Status rref_life() override {
    auto& context = rpc::RRefContext::getInstance();
    const c10::intrusive_ptr<rpc::UserRRef> reference =
        context.createUserRRef(server_->id_, c10::TensorType::get());
    rpc::ScriptRemoteCall remote(add_, {left_, right_, 1}, reference->rrefId(),
                                 reference->forkId());
    const Future created = dist_autograd::sendMessageWithAutograd(
        *agent_, *server_, std::move(remote).toMessage(), /*forceGradRecording=*/false);
    context.addPendingUser(reference->forkId(), reference);
    reference->registerOwnerCreationFuture(created);
    created->addCallback([fork = reference->forkId()](rpc::JitFuture& future) {
      rpc::callback::confirmPendingUser(future, fork);
    });
    return check_sum(reference->toHere().toTensor());
  }

  void close() override { stop_agent(agent_); }

 private:
  static Operator find(const char* name, const char* overload) {
    Operator found = torch::jit::findOperatorFor({name, overload});
    TORCH_CHECK(found != nullptr, "no operator ", name, ".", overload);
    return found;
  }

  // Does what rpc.rpc_async does below its Python layer.
  Future call(const Operator& op, std::vector<c10::IValue> arguments) {
    rpc::ScriptCall request(op, std::move(arguments));
    return dist_autograd::sendMessageWithAutograd(*agent_, *server_,
                                                  std::move(request).toMessage());
  }

  static c10::IValue wait(const Future& future) {
    future->waitAndThrow();
    return rpc::deserializeRespToIValue(*future->constValue().toCustomClass<rpc::Message>());
  }

  static bool is_all(const at::Tensor& tensor, int value) {
    const float* data = tensor.const_data_ptr<float>();
    const auto expected = static_cast<float>(value);
    return tensor.numel() == 4 && data[0] == expected && data[3] == expected;
  }

  static absl::Status check_sum(const at::Tensor& sum) {
    const float* data = sum.const_data_ptr<float>();
    if (sum.numel() == 4 && data[0] == 3 && data[3] == 3) return absl::OkStatus();
    return absl::DataLossError("wrong sum");
  }

  // Makes argument_ a tensor of `bytes` bytes, stamps it and returns the stride.
  int64_t stamp_argument(int64_t bytes) {
    const int64_t elements = bytes / static_cast<int64_t>(sizeof(float));
    if (argument_.numel() != elements) argument_ = at::zeros({elements});
    return stamp(argument_);
  }

  // Writes a new number into the sampled elements and returns their stride.
  int64_t stamp(at::Tensor& tensor) {
    const int64_t stride = tensor.numel() / kSampledElements;
    stamp_ = std::fmod(stamp_ + 1, 1 << 20);
    float* data = tensor.mutable_data_ptr<float>();
    for (int64_t i = 0; i < kSampledElements; ++i)
      data[i * stride] = stamp_ + static_cast<float>(i);
    return stride;
  }

  absl::Status check_stamp(const at::Tensor& tensor, int64_t stride) const {
    if (tensor.numel() < kSampledElements * stride) return absl::DataLossError("reply too short");
    const float* data = tensor.const_data_ptr<float>();
    for (int64_t i = 0; i < kSampledElements; ++i) {
      if (data[i * stride] != stamp_ + static_cast<float>(i))
        return absl::DataLossError("wrong data");
    }
    return absl::OkStatus();
  }

  const std::string transport_;
  const Operator add_ = find("aten::add", "Tensor");
  const Operator slice_ = find("aten::slice", "Tensor");
  const Operator alias_ = find("aten::alias", "");
  const at::Tensor left_ = at::full({2, 2}, 1.0f);
  const at::Tensor right_ = at::full({2, 2}, 2.0f);
  std::shared_ptr<rpc::RpcAgent> agent_;
  const rpc::WorkerInfo* server_ = nullptr;  // belongs to agent_
  std::vector<Future> slots_;
  at::Tensor argument_ = at::zeros({0});
  float stamp_ = 0;
};

}  // namespace

Contestant torch_contestant(const std::string& transport) {
  return {.name = "torch " + transport,
          .spins_when_idle = transport == "shm",
          .make_server = [transport] { return std::make_unique<TorchServer>(transport); },
          .make_client = [transport] { return std::make_unique<TorchClient>(transport); }};
}

}  // namespace weft::bench
