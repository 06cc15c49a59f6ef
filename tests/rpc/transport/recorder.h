// Records what a transport reports in a test, and checks the order of the reports.
//
// Thread safety: Recorder may be used from any thread; an End is for the test's own thread.
// Blocking: the wait functions, up to kPatience.
#pragma once

#include <chrono>
#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/rpc/transport/transport.h"

namespace weft::testing {

inline constexpr std::chrono::seconds kPatience{60};

// Records what a transport reports, and complains if the order is not the promised one.
class Recorder final : public TransportSink {
 public:
  absl::Status on_accept(const PeerIdentity& peer) override {
    MutexLock lock(mutex_);
    accepted_.push_back(peer);
    if (peer.group != "group") {
      return absl::PermissionDeniedError("group '" + peer.group + "' is another job's");
    }
    return refusal_;
  }
  void on_open(const ConnectionPtr& connection) override {
    MutexLock lock(mutex_);
    if (!opened_.insert(connection.get()).second) complain("opened twice");
    if (has_closed(connection)) complain("opened after it was closed");
    connections_.push_back(connection);
    changed_.notify_all();
  }
  void on_frames(const ConnectionPtr& connection, std::vector<Frame> frames) override {
    MutexLock lock(mutex_);
    if (frames.empty()) complain("no frames");
    if (has_closed(connection)) complain("a frame after on_closed");
    if (!dialled_ && !opened_.contains(connection.get())) complain("a frame before on_open");
    count_ += frames.size();
    if (keep_) std::move(frames.begin(), frames.end(), std::back_inserter(frames_));
    changed_.notify_all();
  }
  void on_closed(const ConnectionPtr& connection, absl::Status reason) override {
    MutexLock lock(mutex_);
    if (!closed_.emplace(connection.get(), reason).second) complain("closed twice");
    kept_.push_back(connection);
    changed_.notify_all();
  }

  void set_refusal(absl::Status status) {
    MutexLock lock(mutex_);
    refusal_ = std::move(status);
  }
  // Call this if this end dials: then the callback of connect() reports the open connection.
  void expect_dialling() {
    MutexLock lock(mutex_);
    dialled_ = true;
  }
  void drop_frames() {
    MutexLock lock(mutex_);
    keep_ = false;
  }

  bool wait_for_frames(size_t count) {
    return wait([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return count_ >= count; });
  }
  bool wait_for_closed(size_t count) {
    return wait([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return closed_.size() >= count; });
  }
  // The latest connection, once `count` were accepted; null after kPatience.
  ConnectionPtr wait_for_connection(size_t count = 1) {
    if (!wait([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return connections_.size() >= count; })) {
      return nullptr;
    }
    MutexLock lock(mutex_);
    return connections_.back();
  }
  std::vector<Frame> take_frames() {
    MutexLock lock(mutex_);
    return std::exchange(frames_, {});
  }
  // Forgets the connections so far, so that nothing keeps the closed ones.
  void forget_connections() {
    std::vector<ConnectionPtr> opened, closed;  // destroyed outside the lock
    MutexLock lock(mutex_);
    opened.swap(connections_);
    closed.swap(kept_);
    opened_.clear();
    closed_.clear();
  }
  std::vector<PeerIdentity> accepted() {
    MutexLock lock(mutex_);
    return accepted_;
  }
  std::vector<absl::Status> reasons() {
    MutexLock lock(mutex_);
    std::vector<absl::Status> all;
    for (const auto& [connection, reason] : closed_) all.push_back(reason);
    return all;
  }
  std::string complaints() {
    MutexLock lock(mutex_);
    return complaints_;
  }

 private:
  void complain(const char* text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    complaints_ += std::string(text) + "; ";
  }
  bool has_closed(const ConnectionPtr& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_.contains(connection.get());
  }
  template <class Condition>
  bool wait(Condition condition) {
    const TimePoint deadline = std::chrono::steady_clock::now() + kPatience;
    MutexLock lock(mutex_);
    while (!condition()) {
      if (!changed_.wait_until(mutex_, deadline)) return condition();
    }
    return true;
  }

  Mutex mutex_;
  CondVar changed_;
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  bool dialled_ ABSL_GUARDED_BY(mutex_) = false;
  bool keep_ ABSL_GUARDED_BY(mutex_) = true;
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<PeerIdentity> accepted_ ABSL_GUARDED_BY(mutex_);
  std::vector<ConnectionPtr> connections_ ABSL_GUARDED_BY(mutex_);
  std::vector<ConnectionPtr> kept_ ABSL_GUARDED_BY(mutex_);  // addresses stay taken
  std::set<Connection*> opened_ ABSL_GUARDED_BY(mutex_);
  std::map<Connection*, absl::Status> closed_ ABSL_GUARDED_BY(mutex_);
  std::vector<Frame> frames_ ABSL_GUARDED_BY(mutex_);
  std::string complaints_ ABSL_GUARDED_BY(mutex_);
};

// A worker as its transport sees it. Its destructor fails the test if the order was wrong.
struct End {
  std::unique_ptr<Transport> transport;
  Recorder sink;
  PeerIdentity identity;

  ~End() {
    if (transport != nullptr) transport->stop();
    EXPECT_EQ(sink.complaints(), "") << identity.name;
  }
};

}  // namespace weft::testing
