// The rendezvous store of a run. It answers at once, or loses a question or an answer.
//
// Thread safety: none.
// Errors: Unavailable (depends on its mood), Unimplemented (what a run does not need).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/rpc/rendezvous/rendezvous_store.h"

namespace weft::sim {

class VirtualStore final : public RendezvousStore {
 public:
  enum class Mood {
    kWell,
    kLosesQuestions,  // nothing happens
    kLosesAnswers,    // it happens, but the caller does not learn of it
  };
  void set_mood(Mood mood) { mood_ = mood; }

  absl::StatusOr<std::optional<std::string>> try_get(const std::string& key) override {
    if (mood_ != Mood::kWell) return lost();
    auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }
  absl::StatusOr<std::string> compare_set(const std::string& key, const std::string& expected,
                                          const std::string& desired) override {
    if (mood_ == Mood::kLosesQuestions) return lost();
    auto found = values_.find(key);
    const std::string held = found == values_.end() ? "" : found->second;
    if (held == expected) values_[key] = desired;
    if (mood_ == Mood::kLosesAnswers) return lost();
    return held == expected ? desired : held;
  }

  absl::Status set(const std::string&, const std::string&) override { return none(); }
  absl::StatusOr<std::string> get(const std::string&, absl::Duration) override { return none(); }
  absl::StatusOr<int64_t> add(const std::string&, int64_t) override { return none(); }
  absl::Status wait(const std::vector<std::string>&, absl::Duration) override { return none(); }
  std::string description() const override { return "the simulator's store"; }

 private:
  static absl::Status lost() { return absl::UnavailableError("the store did not answer"); }
  static absl::Status none() { return absl::UnimplementedError("not simulated"); }

  Mood mood_ = Mood::kWell;
  std::map<std::string, std::string> values_;
};

}  // namespace weft::sim
