// The first argument of each verb: the worker to call, the options of the call, and the calling
// worker if the process has several.
//
//   weft::rpc_sync("worker1", add, a, b);
//   weft::rpc_sync({"worker1", {.timeout = 5s}}, add, a, b);
//   weft::rpc_sync(alice.to("bob", {.timeout = 5s}), add, a, b);  // from worker alice
//
// Thread safety: a plain value.
// Lifetime: shares ownership of the calling worker's runtime if it names one.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "weft/rpc/call_options.h"
#include "weft/rpc/runtime.h"

namespace weft {

class Destination {
 public:
  // A worker by its name. The current worker makes the call (call_scope.h).
  Destination(const char* name, CallOptions options = {})  // NOLINT: implicit
      : name_(name), options_(options) {}
  Destination(std::string_view name, CallOptions options = {})  // NOLINT: implicit
      : name_(name), options_(options) {}
  Destination(std::string name, CallOptions options = {})  // NOLINT: implicit
      : name_(std::move(name)), options_(options) {}
  // One incarnation of a worker.
  Destination(WorkerId id, CallOptions options = {})  // NOLINT: implicit
      : id_(id), options_(options) {}
  // A call that the given worker of this process makes.
  Destination(std::shared_ptr<RpcRuntime> from, std::string_view name, CallOptions options = {})
      : from_(std::move(from)), name_(name), options_(options) {}
  Destination(std::shared_ptr<RpcRuntime> from, WorkerId id, CallOptions options = {})
      : from_(std::move(from)), id_(id), options_(options) {}

  const std::shared_ptr<RpcRuntime>& from() const { return from_; }  // null: the current worker's
  const std::string& name() const { return name_; }                  // empty: `id` says the worker
  WorkerId id() const { return id_; }
  const CallOptions& options() const { return options_; }

 private:
  std::shared_ptr<RpcRuntime> from_;
  std::string name_;
  WorkerId id_;
  CallOptions options_;
};

}  // namespace weft
