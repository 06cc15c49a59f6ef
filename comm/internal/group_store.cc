#include "weft/comm/internal/group_store.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/environment.h"
#include "weft/comm/internal/exception_text.h"
#include "weft/comm/process_group.h"
#include "weft/comm/tensors/tensor_arguments.h"
#include "weft/launcher/launch_environment.h"

namespace weft::comm_internal {
namespace {

using std::chrono::milliseconds;
using StorePointer = c10::intrusive_ptr<c10d::Store>;

// Opens a store with a time limit: c10d waits forever for a server that accepts and never answers.
StorePointer open_in_time(const std::string& address, milliseconds timeout,
                          std::function<StorePointer()> open) {
  const auto opened = std::make_shared<StorePointer>();  // shared with a call that may hang
  bool answered = false;
  try {
    answered = StoreCaller().run([opened, open = std::move(open)] { *opened = open(); },
                                 std::chrono::steady_clock::now() + timeout);
  } catch (const std::exception& failed) {
    C10_THROW_ERROR(DistNetworkError,
                    absl::StrCat("process group: rendezvous at ", address, ": ", text_of(failed)));
  }
  if (answered) return *opened;
  C10_THROW_ERROR(
      DistNetworkError,
      absl::StrCat("process group: ", address, " did not answer within ", timeout.count(), " ms"));
}

StorePointer open_tcp(const std::string& host, uint16_t port, bool serve, milliseconds timeout) {
  const auto open = [host, port, timeout](bool server) {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = server;
    options.waitWorkers = false;
    options.timeout = timeout;
    return c10::make_intrusive<c10d::TCPStore>(host, options);
  };
  return open_in_time(absl::StrCat(host, ":", port), timeout, [serve, open]() -> StorePointer {
    if (!serve) return open(false);
    try {
      return open(true);
    } catch (const c10::Error&) {
      // The address is in use. If this process has joined a group of workers at this address, it
      // serves there itself. Otherwise the client finds out what is there.
      return open(false);
    }
  });
}

// Reads the environment. Rank and world size of the options take precedence over it.
absl::StatusOr<LaunchEnvironment> environment_of(const ProcessGroupOptions& options) {
  return read_launch_environment([&](const char* name) {
    const std::string variable = name;
    if (variable == "RANK" && options.rank >= 0) {
      return std::optional<std::string>(absl::StrCat(options.rank));
    }
    if (variable == "WORLD_SIZE" && options.world_size >= 0) {
      return std::optional<std::string>(absl::StrCat(options.world_size));
    }
    // These would count all launched processes, not the ranks of this group.
    const bool of_others = options.rank >= 0 || options.world_size >= 0;
    if (of_others && (variable == "LOCAL_RANK" || variable == "LOCAL_WORLD_SIZE")) {
      return std::optional<std::string>();
    }
    return read_process_environment(name);
  });
}

void need_place(const ProcessGroupOptions& options) {
  if (options.rank >= 0 && options.world_size >= 1) return;
  refuse(absl::StrCat("process group: ", options.init_method,
                      " needs rank and world_size in the options"));
}

}  // namespace

GroupStore open_group_store(ProcessGroupOptions& options) {
  const milliseconds timeout = std::min(options.timeout, kLongestStoreTimeout);
  std::string method = options.init_method;
  if (method == "env://") {
    const absl::StatusOr<LaunchEnvironment> environment = environment_of(options);
    if (!environment.ok()) {
      refuse(absl::StrCat("process group: ", std::string(environment.status().message())));
    }
    options.rank = static_cast<int>(environment->rank);
    options.world_size = static_cast<int>(environment->world_size);
    const StorePointer store =
        open_tcp(environment->master_addr, environment->master_port,
                 options.rank == 0 && !environment->agent_hosts_store, timeout);
    return {c10::make_intrusive<c10d::PrefixStore>(
                absl::StrCat("weft/", environment->run_id, "/", environment->group_epoch), store),
            environment->restart_count};
  }
  if (absl::StartsWith(method, "tcp://")) {
    need_place(options);
    method.erase(0, 6);
    const size_t colon = method.rfind(':');
    uint32_t port = 0;
    if (colon == std::string::npos || colon == 0 ||
        !absl::SimpleAtoi(method.substr(colon + 1), &port) || port == 0 || port > 65535) {
      refuse(absl::StrCat("process group: '", options.init_method, "' is not tcp://HOST:PORT"));
    }
    return {
        open_tcp(method.substr(0, colon), static_cast<uint16_t>(port), options.rank == 0, timeout)};
  }
  if (absl::StartsWith(method, "file://")) {
    need_place(options);
    method.erase(0, 7);
    if (method.empty() || method[0] != '/') {
      refuse(absl::StrCat("process group: '", options.init_method, "' is not file:///PATH"));
    }
    // FileStore tries for five minutes to open a file in a folder that does not exist.
    return {open_in_time(absl::StrCat("file ", method), timeout,
                         [method, timeout, size = options.world_size]() -> StorePointer {
                           auto store = c10::make_intrusive<c10d::FileStore>(method, size);
                           store->setTimeout(timeout);
                           return store;
                         })};
  }
  refuse(absl::StrCat("process group: '", options.init_method,
                      "' is no init_method: env://, tcp://HOST:PORT or file:///PATH"));
}

std::string name_of(const StorePointer& store) {
  StorePointer bottom = store;
  if (auto* const prefix = dynamic_cast<c10d::PrefixStore*>(store.get())) {
    bottom = prefix->getUnderlyingNonPrefixStore();
  }
  if (const auto* const tcp = dynamic_cast<const c10d::TCPStore*>(bottom.get())) {
    return absl::StrCat("rendezvous store at ", tcp->getHost(), ":", tcp->getPort());
  }
  if (const auto* const file = dynamic_cast<const c10d::FileStore*>(bottom.get())) {
    return absl::StrCat("rendezvous store in ", file->getPath());
  }
  return "rendezvous store";
}

bool StoreCaller::run(std::function<void()> call, TimePoint deadline, milliseconds grace) {
  std::promise<void> done;
  std::future<void> finished = done.get_future();
  thread_->run([call = std::move(call), done = std::move(done), keep = thread_]() mutable {
    std::exception_ptr failed;
    try {
      call();
    } catch (...) {
      failed = std::current_exception();
    }
    call = nullptr;
    keep.reset();  // the caller joins the thread; if the caller has left, the thread stops itself
    if (failed != nullptr) {
      done.set_exception(std::move(failed));
    } else {
      done.set_value();
    }
  });
  if (finished.wait_until(deadline + grace) != std::future_status::ready) return false;
  finished.get();
  return true;
}

}  // namespace weft::comm_internal
