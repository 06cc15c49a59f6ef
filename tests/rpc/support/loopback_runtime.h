// A runtime in which every worker is itself: calls are encoded, decoded and run in this process.
//
// Thread safety: none; calls run inside `call`, or inside `executor.run_all()` if `deferred`.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "weft/async/executor.h"
#include "weft/base/clock.h"
#include "weft/rpc/registry.h"
#include "weft/rpc/runtime.h"

namespace weft::testing {

class LoopbackRuntime final : public RpcRuntime {
 public:
  explicit LoopbackRuntime(std::shared_ptr<const Registry> registry)
      : registry_(std::move(registry)) {}

  WorkerId id() const override { return {0, 1}; }
  const std::string& name() const override { return name_; }
  absl::StatusOr<WorkerId> resolve(std::string_view worker) const override {
    if (worker == name_) return id();
    return absl::NotFoundError("there is no worker '" + std::string(worker) + "'");
  }
  std::string name_of(WorkerId) const override { return name_; }
  Executor& executor() override { return executor_; }
  Clock& clock() override { return clock_; }
  const Registry& registry() const override { return *registry_; }

  CallId call(CallRequest request, ReplyHandler on_reply) override {
    const CallId id{++calls};
    last_options = request.options;
    auto run = [this, id, request = std::move(request), reply = std::move(on_reply)]() mutable {
      serve(id, std::move(request), std::move(reply));
    };
    if (deferred) {
      executor_.schedule(std::move(run));
    } else {
      run();
    }
    return id;
  }
  void cancel(WorkerId, CallId call) override { cancelled.push_back(call); }

  ManualExecutor& manual_executor() { return executor_; }
  // Gives the callee another registry than the caller's.
  void set_callee_registry(std::shared_ptr<const Registry> registry) { callee_ = registry; }

  bool deferred = false;
  uint64_t calls = 0;
  std::vector<CallId> cancelled;
  CallOptions last_options;
  std::map<std::string, Object> objects;               // by the `target` that calls name
  std::function<void(std::string&)> change_arguments;  // changes the bytes on the wire
  std::function<void(std::string&)> change_result;
  size_t holders_of_result = 0;  // of the last result's first tensor, as it is sent

 private:
  class Sink final : public ResultSink {
   public:
    Sink(LoopbackRuntime& runtime, std::string creation, ReplyHandler reply)
        : runtime_(runtime), creation_(std::move(creation)), reply_(std::move(reply)) {}
    ~Sink() override {
      if (reply_) fail(absl::CancelledError("the sink was dropped"));
    }
    bool wants_object() const override { return !creation_.empty(); }
    void finish(Writer value) override {
      if (!value.tensors().empty()) {
        runtime_.holders_of_result = value.tensors().front().use_count();
      }
      if (runtime_.change_result) runtime_.change_result(value.body());
      std::exchange(reply_, nullptr)(Reader(std::move(value.body()), std::move(value.tensors()),
                                            std::move(value.references())));
    }
    void finish(Object value) override {
      runtime_.objects[creation_] = std::move(value);
      std::exchange(reply_, nullptr)(Reader());
    }
    void fail(absl::Status status) override {
      std::exchange(reply_, nullptr)(raised_at(std::move(status), runtime_.name_));
    }

   private:
    LoopbackRuntime& runtime_;
    const std::string creation_;
    ReplyHandler reply_;
  };

  void serve(CallId, CallRequest request, ReplyHandler reply) {
    auto sink = std::make_unique<Sink>(*this, request.creation, std::move(reply));
    const Registry& registry = callee_ != nullptr ? *callee_ : *registry_;
    const auto entry = registry.find_for_call(request.function, name_);
    if (!entry.ok()) {
      sink->fail(entry.status());
      return;
    }
    if (change_arguments) change_arguments(request.arguments.body());
    Reader reader(std::move(request.arguments.body()), std::move(request.arguments.tensors()),
                  std::move(request.arguments.references()));
    auto context = std::make_shared<CallContext>(clock_, id(), "caller", kNever);
    const auto target = objects.find(request.target);
    (*entry)->invoke(**entry, reader, target == objects.end() ? nullptr : &target->second, *context,
                     std::move(sink));
  }

  const std::string name_ = "w";
  std::shared_ptr<const Registry> registry_;
  std::shared_ptr<const Registry> callee_;
  ManualExecutor executor_;
  ManualClock clock_;
};

}  // namespace weft::testing
