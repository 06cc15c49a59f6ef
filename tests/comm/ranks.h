// Runs the ranks of a group in one process, each with its own mapping of all ranks' memory.
//
// Thread safety: each rank's program runs in a thread of its own. Ranks::end() may be called for
// one's own rank while the others run.
// Blocking: connected() and each_rank() return when all ranks have returned.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"
#include "weft/comm/same_host/collective_group.h"
#include "weft/comm/same_host/mesh.h"

namespace weft::testing {

class MemoryNoticeboard : public comm_internal::Noticeboard {
 public:
  absl::Status post(int rank, const std::string& text) override {
    MutexLock lock(mutex_);
    texts_[rank] = text;
    changed_.notify_all();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> read(int rank, TimePoint deadline) override {
    MutexLock lock(mutex_);
    while (texts_.count(rank) == 0) {
      if (!changed_.wait_until(mutex_, deadline)) {
        return absl::DeadlineExceededError("nothing was posted");
      }
    }
    return texts_.at(rank);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<int, std::string> texts_ ABSL_GUARDED_BY(mutex_);
};

inline std::chrono::steady_clock::time_point in_time() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(60);
}

// Runs a program for each rank, all at the same time, and waits until all have returned.
inline void each_rank(int size, const std::function<void(int rank)>& program) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&, rank] { program(rank); });
  for (std::thread& thread : threads) thread.join();
}

// By rank. Shared, because a group shares its mesh.
using Meshes = std::vector<std::shared_ptr<comm_internal::Mesh>>;

inline Meshes connected(int size) {
  MemoryNoticeboard notices;
  Meshes meshes(size);
  each_rank(size, [&](int rank) {
    auto mesh = comm_internal::Mesh::form(rank, size, notices, in_time());
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    meshes[rank] = *std::move(mesh);
  });
  return meshes;
}

class Ranks {
 public:
  explicit Ranks(int size, comm_internal::CollectiveGroup::Options options = {})
      : Ranks(connected(size), options) {}
  Ranks(const Meshes& meshes, comm_internal::CollectiveGroup::Options options) {
    for (const auto& mesh : meshes) {
      groups_.push_back(std::make_unique<comm_internal::CollectiveGroup>(mesh, options));
    }
  }

  int size() const { return static_cast<int>(groups_.size()); }
  comm_internal::CollectiveGroup& operator[](int rank) { return *groups_[rank]; }
  void end(int rank) { groups_[rank].reset(); }

  void each(const std::function<void(int rank)>& program) { each_rank(size(), program); }

 private:
  std::vector<std::unique_ptr<comm_internal::CollectiveGroup>> groups_;
};

}  // namespace weft::testing
