// Where a call goes and with what options: what every verb takes first.
//
//   weft::rpc_sync("worker1", add, a, b);
//   weft::rpc_sync({"worker1", {.timeout = 5s}}, add, a, b);
//   weft::rpc_sync(alice.to("bob", {.timeout = 5s}), add, a, b);  // a worker of several
//
// Thread safety: a plain value.
// Lifetime: keeps the worker's runtime if it names one.
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
  // By name; the worker that calls is the current one (call_scope.h).
  Destination(const char* name, CallOptions options = {})  // NOLINT: implicit
      : name_(name), options_(options) {}
  Destination(std::string_view name, CallOptions options = {})  // NOLINT: implicit
      : name_(name), options_(options) {}
  Destination(std::string name, CallOptions options = {})  // NOLINT: implicit
      : name_(std::move(name)), options_(options) {}
  // One life of a worker.
  Destination(WorkerId id, CallOptions options = {})  // NOLINT: implicit
      : id_(id), options_(options) {}
  // From a given worker of this process.
  Destination(std::shared_ptr<RpcRuntime> from, std::string_view name, CallOptions options = {})
      : from_(std::move(from)), name_(name), options_(options) {}
  Destination(std::shared_ptr<RpcRuntime> from, WorkerId id, CallOptions options = {})
      : from_(std::move(from)), id_(id), options_(options) {}

  const std::shared_ptr<RpcRuntime>& from() const { return from_; }  // null: the current one
  const std::string& name() const { return name_; }                  // empty: by id
  WorkerId id() const { return id_; }
  const CallOptions& options() const { return options_; }

 private:
  std::shared_ptr<RpcRuntime> from_;
  std::string name_;
  WorkerId id_;
  CallOptions options_;
};

}  // namespace weft
