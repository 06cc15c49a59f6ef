// Runs several workers' LocalGraphs in one thread, joined by a queue of messages.
//
// It follows docs/backward_protocol.md, but sees all workers at once, so it needs no reports. It
// also has what the tests of LocalGraph share.
//
// Thread safety: none.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include "weft/base/status.h"
#include "weft/dist_autograd/graph/local_graph.h"
#include "weft/dist_autograd/graph/recv_node.h"
#include "weft/dist_autograd/graph/send_record.h"

namespace weft::dist_autograd_internal {

// A worker outside of the world, to which a graph sends.
inline constexpr WorkerId kPeer{7, 1};

struct PassOptions {
  bool retain_graph = false;
  bool eager = false;               // discover before feeding
  bool engine_scope = false;        // on even without hooks on leaves
  bool split = false;               // the weight gradients come last, on all workers
  std::mt19937* shuffle = nullptr;  // deliver in any order; null: first in, first out
  std::map<int, std::function<absl::Status(const at::Tensor&, at::Tensor&)>> on_leaf = {};
};

inline at::Tensor leaf(at::IntArrayRef shape = {3}) {
  return torch::rand(shape, torch::kDouble).set_requires_grad(true);
}

// The gradient of `loss` in one graph. It leaves `.grad` alone.
inline at::Tensor oracle(const at::Tensor& loss, const at::Tensor& variable) {
  return torch::autograd::grad({loss}, {variable}, {}, /*retain_graph=*/true).at(0);
}

inline void expect_equal(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_TRUE(actual.defined());
  EXPECT_TRUE(torch::allclose(actual, expected, 1e-10, 1e-12)) << actual << expected;
}

inline void expect_ok(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

// y = x, with a backward that a test chooses.
struct Custom : torch::autograd::Function<Custom> {
  using Backward = std::function<at::Tensor(at::Tensor)>;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            Backward* backward) {
    context->saved_data["backward"] = reinterpret_cast<int64_t>(backward);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* backward = reinterpret_cast<Backward*>(context->saved_data["backward"].toInt());
    return {(*backward)(gradients.at(0)), at::Tensor()};
  }
};
inline at::Tensor custom(const at::Tensor& x, Custom::Backward& backward) {
  return Custom::apply(x, &backward);
}

class LocalWorld {
 public:
  explicit LocalWorld(int workers) : workers_(workers) {}

  // Returns the tensors as `to` receives them. `lost`: the sender has recorded them, but nobody
  // gets them.
  std::vector<at::Tensor> transfer(int from, int to, const std::vector<at::Tensor>& tensors,
                                   bool lost = false) {
    const SendId id{worker_id(from), ++last_send_};
    SendRecord record = record_send(id, worker_id(to), tensors);
    const bool recorded = record.slots() > 0;
    std::vector<bool> mask;
    for (const auto& edge : record.edges) mask.push_back(edge.is_valid());
    if (recorded) workers_[from].sends.push_back(std::move(record));
    if (lost) return {};
    std::vector<at::Tensor> received;
    for (const at::Tensor& tensor : tensors) received.push_back(tensor.detach().clone());
    if (recorded) {
      const absl::Status status = attach_recv(id, received, mask);
      TORCH_CHECK(status.ok(), status.ToString());
    }
    return received;
  }
  at::Tensor transfer(int from, int to, const at::Tensor& tensor) {
    return transfer(from, to, std::vector<at::Tensor>{tensor}).at(0);
  }

  absl::Status backward(int initiator, const std::vector<at::Tensor>& roots,
                        PassOptions options = {}) {
    options_ = std::move(options);
    initiator_ = initiator;
    roots_ = roots;
    messages = empty_answers = activations = 0;
    absl::Status status = run();
    if (status.ok()) commit();
    for (Worker& worker : workers_) {
      worker.pass.reset();
      worker.active.clear();
    }
    queue_.clear();
    roots_.clear();
    return status;
  }

  // The gradient of a leaf on a worker, or an undefined tensor if there is none.
  at::Tensor gradient(int worker, const at::Tensor& variable) const {
    return find(workers_[worker].gradients, variable);
  }
  // Returns what the last pass has added to it.
  at::Tensor last_gradient(int worker, const at::Tensor& variable) const {
    return find(workers_[worker].last, variable);
  }
  size_t gradients(int worker) const { return workers_[worker].gradients.size(); }
  std::vector<SendRecord>& sends(int worker) { return workers_[worker].sends; }

  size_t messages = 0;       // gradient messages of the last pass
  size_t empty_answers = 0;  // those of them without any gradient
  size_t activations = 0;

 private:
  struct Worker {
    std::vector<SendRecord> sends;
    std::vector<LeafGradient> gradients, last;
    std::unique_ptr<LocalGraph> pass;
    std::set<SendId> active;
  };
  struct Message {
    SendId send;
    bool activate = false;
    std::vector<at::Tensor> gradients;
  };

  static at::Tensor find(const std::vector<LeafGradient>& gradients, const at::Tensor& variable) {
    for (const LeafGradient& leaf : gradients) {
      if (leaf.variable.is_same(variable)) return leaf.gradient;
    }
    return {};
  }
  static WorkerId worker_id(int worker) { return {static_cast<uint32_t>(worker), 1}; }

  absl::Status engage(int index) {
    Worker& worker = workers_[index];
    if (worker.pass) return absl::OkStatus();
    LocalGraphOptions options;
    options.retain_graph = options_.retain_graph;
    options.engine_scope = options_.engine_scope;
    options.split = options_.split;
    const auto on_leaf = options_.on_leaf.find(index);
    if (on_leaf != options_.on_leaf.end()) options.on_leaf = on_leaf->second;
    options.on_answer = [this](RecvAnswer answer) {
      ++messages;
      empty_answers += answer.empty();
      Message message{answer.send, false, {}};
      for (const at::Tensor& gradient : answer.gradients) {
        message.gradients.push_back(gradient.defined() ? gradient.clone() : at::Tensor());
      }
      queue_.push_back(std::move(message));
    };
    worker.pass = std::make_unique<LocalGraph>(std::move(options));
    std::vector<const SendRecord*> sends;
    for (const SendRecord& send : worker.sends) sends.push_back(&send);
    return worker.pass->engage(index == initiator_ ? roots_ : std::vector<at::Tensor>(), sends);
  }

  void activate(absl::Span<const SendId> sends) {
    activations += sends.size();
    for (const SendId send : sends) queue_.push_back({send, true, {}});
  }

  absl::Status discover() {
    WEFT_ASSIGN_OR_RETURN(const std::vector<SendId> found,
                          workers_[initiator_].pass->reach_roots());
    activate(found);
    WEFT_RETURN_IF_ERROR(deliver_all());
    for (Worker& worker : workers_) {
      if (!worker.pass) continue;
      for (const SendId send : worker.pass->unanswered()) {
        if (!worker.active.contains(send)) WEFT_RETURN_IF_ERROR(worker.pass->cancel(send));
      }
    }
    return absl::OkStatus();
  }

  absl::Status deliver_all() {
    while (!queue_.empty()) {
      size_t next = 0;
      if (options_.shuffle != nullptr) next = (*options_.shuffle)() % queue_.size();
      Message message = std::move(queue_[next]);
      queue_.erase(queue_.begin() + next);
      const int index = message.send.creator.index;
      WEFT_RETURN_IF_ERROR(engage(index));
      Worker& worker = workers_[index];
      if (!message.activate) {
        WEFT_RETURN_IF_ERROR(worker.pass->feed(message.send, std::move(message.gradients)));
      } else if (worker.active.insert(message.send).second) {
        WEFT_ASSIGN_OR_RETURN(const std::vector<SendId> found, worker.pass->reach(message.send));
        activate(found);
      }
    }
    return absl::OkStatus();
  }

  bool anybody_waiting() const {
    for (const Worker& worker : workers_) {
      if (worker.pass && worker.pass->waiting()) return true;
    }
    return false;
  }

  absl::Status run() {
    WEFT_RETURN_IF_ERROR(engage(initiator_));
    if (options_.eager) WEFT_RETURN_IF_ERROR(discover());
    WEFT_RETURN_IF_ERROR(workers_[initiator_].pass->feed_roots());
    WEFT_RETURN_IF_ERROR(deliver_all());
    if (!options_.eager && anybody_waiting()) {
      WEFT_RETURN_IF_ERROR(discover());
      WEFT_RETURN_IF_ERROR(deliver_all());
    }
    if (anybody_waiting()) return absl::InternalError("a gradient still waits after discovery");
    for (Worker& worker : workers_) {
      if (options_.split && worker.pass) WEFT_RETURN_IF_ERROR(worker.pass->run_weights());
    }
    return absl::OkStatus();
  }

  void commit() {
    for (Worker& worker : workers_) {
      worker.last.clear();
      if (!worker.pass) continue;
      for (LeafGradient& leaf : worker.pass->take_leaves()) {
        worker.last.push_back({leaf.variable, leaf.gradient.clone()});
        auto known = worker.gradients.begin();
        while (known != worker.gradients.end() && !known->variable.is_same(leaf.variable)) ++known;
        if (known == worker.gradients.end()) {
          known = worker.gradients.insert(known, {leaf.variable, at::Tensor()});
        }
        accumulate_gradient(leaf.variable, known->gradient, std::move(leaf.gradient));
      }
      if (options_.retain_graph) continue;
      std::erase_if(worker.sends,
                    [&](const SendRecord& send) { return worker.pass->fed(send.id); });
    }
  }

  std::vector<Worker> workers_;
  std::deque<Message> queue_;
  std::vector<at::Tensor> roots_;
  PassOptions options_;
  int initiator_ = 0;
  uint64_t last_send_ = 0;
};

}  // namespace weft::dist_autograd_internal
