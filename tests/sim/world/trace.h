// The last events of a run in words. It is off when runs are only counted, because words cost more
// than events.
//
// Thread safety: none.
#pragma once

#include <deque>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace weft::sim {

class Trace {
 public:
  static constexpr size_t kKept = 40;

  explicit Trace(bool on = false, std::ostream* live = nullptr) : on_(on), live_(live) {}

  bool on() const { return on_; }
  void begin(std::string event) {
    if (live_ != nullptr) *live_ << event << "\n";
    events_.push_back({std::move(event)});
    if (events_.size() > kKept) events_.pop_front();
  }
  void add(std::string line) {
    if (live_ != nullptr) *live_ << "      " << line << "\n";
    if (!events_.empty()) events_.back().push_back(std::move(line));
  }
  void print(std::ostream& out) const {
    for (const auto& event : events_) {
      for (size_t i = 0; i < event.size(); ++i) out << (i == 0 ? "" : "      ") << event[i] << "\n";
    }
  }

 private:
  const bool on_;
  std::ostream* const live_;
  std::deque<std::vector<std::string>> events_;
};

}  // namespace weft::sim
