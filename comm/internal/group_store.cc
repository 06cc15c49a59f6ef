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
#include "weft/security/security_mode.h"
#include "weft/store/job/c10d_store.h"
#include "weft/store/job/job_store.h"

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

// Opens the store of the job.
StorePointer open_job_store(const LaunchEnvironment& environment, milliseconds timeout) {
  const std::string where = environment.store.empty() ? absl::StrCat(environment.master_addr, ":",
                                                                     environment.master_port)
                                                      : environment.store;
  const absl::StatusOr<SecurityMode> security = find_security_mode();
  if (!security.ok()) {
    refuse(absl::StrCat("process group: ", std::string(security.status().message())));
  }
  absl::StatusOr<std::shared_ptr<StoreHandle>> store =
      open_job_store(environment, *security, absl::FromChrono(timeout));
  if (store.ok()) return c10::make_intrusive<C10dStore>(*std::move(store), timeout);
  C10_THROW_ERROR(DistNetworkError, absl::StrCat("process group: rendezvous at ", where, ": ",
                                                 std::string(store.status().message())));
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
    const StorePointer store = open_job_store(*environment, timeout);
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
    LaunchEnvironment place;
    place.rank = static_cast<uint32_t>(options.rank);
    place.master_addr = method.substr(0, colon);
    place.master_port = static_cast<uint16_t>(port);
    place.run_id = "";  // a certificate may be of any job
    return {open_job_store(place, timeout)};
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
  if (const auto* const job = dynamic_cast<const C10dStore*>(bottom.get())) {
    return job->description();
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
