#include "weft/base/termination.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "weft/base/faults/breakage.h"

namespace weft {
namespace {

uint64_t count_of(const std::vector<PeerCount>& counts, WorkerId worker) {
  auto it = std::lower_bound(counts.begin(), counts.end(), worker,
                             [](const PeerCount& a, WorkerId b) { return a.worker < b; });
  return it != counts.end() && it->worker == worker ? it->count : 0;
}

}  // namespace

uint64_t MessageCounts::count_sent(WorkerId to) {
  if (left_out_.contains(to)) return 0;
  return ++sent_[to];
}

void MessageCounts::count_received(WorkerId from) {
  if (!left_out_.contains(from)) ++received_[from].count;
}

bool MessageCounts::count_received(WorkerId from, uint64_t number) {
  if (left_out_.contains(from)) return false;
  Received& received = received_[from];
  if (number <= received.all_until || !received.beyond.insert(number).second) return false;
  ++received.count;
  while (!received.beyond.empty() && *received.beyond.begin() == received.all_until + 1) {
    received.beyond.erase(received.beyond.begin());
    ++received.all_until;
  }
  return true;
}

void MessageCounts::leave_out(WorkerId dead) {
  sent_.erase(dead);
  received_.erase(dead);
  left_out_.insert(dead);
}

bool MessageCounts::exchanged_with(WorkerId peer) const {
  return sent_.contains(peer) || received_.contains(peer);
}

std::vector<WorkerId> MessageCounts::receivers() const {
  std::vector<WorkerId> all;
  for (const auto& [peer, count] : sent_) all.push_back(peer);
  return all;
}

std::vector<WorkerId> MessageCounts::peers() const {
  std::set<WorkerId> all;
  for (const auto& [peer, count] : sent_) all.insert(peer);
  for (const auto& [peer, received] : received_) all.insert(peer);
  return {all.begin(), all.end()};
}

TerminationReport MessageCounts::report(WorkerId self) {
  TerminationReport report{.worker = self, .version = ++version_};
  for (const auto& [peer, count] : sent_) report.sent.push_back({peer, count});
  for (const auto& [peer, received] : received_) {
    if (received.count > 0) report.received.push_back({peer, received.count});
  }
  report.left_out.assign(left_out_.begin(), left_out_.end());
  return report;
}

void TerminationDetector::expect(WorkerId worker) {
  if (!left_out_.contains(worker)) rows_.try_emplace(worker, TerminationReport{.worker = worker});
}

bool TerminationDetector::update(TerminationReport report) {
  if (left_out_.contains(report.worker)) return false;
  expect(report.worker);
  TerminationReport& row = rows_.at(report.worker);
  if (report.version <= row.version) return false;
  for (const PeerCount& sent : report.sent) expect(sent.worker);
  for (const PeerCount& received : report.received) expect(received.worker);
  row = std::move(report);
  return true;
}

void TerminationDetector::leave_out(WorkerId dead) {
  left_out_.insert(dead);
  rows_.erase(dead);
}

bool TerminationDetector::settled(const TerminationReport& row) const {
  if (row.version == 0) return false;
  if (!std::includes(row.left_out.begin(), row.left_out.end(), left_out_.begin(),
                     left_out_.end())) {
    return false;
  }
  for (const PeerCount& sent : row.sent) {
    if (left_out_.contains(sent.worker)) continue;
    if (WEFT_BREAK(unreceived_ignored)) continue;
    // `update` has made a row for each worker that a report names, unless it is left out.
    if (count_of(rows_.at(sent.worker).received, row.worker) != sent.count) return false;
  }
  for (const PeerCount& received : row.received) {
    if (left_out_.contains(received.worker)) continue;
    if (count_of(rows_.at(received.worker).sent, row.worker) != received.count) return false;
  }
  return true;
}

bool TerminationDetector::quiescent() const {
  return std::all_of(rows_.begin(), rows_.end(),
                     [this](const auto& row) { return settled(row.second); });
}

std::vector<WorkerId> TerminationDetector::workers() const {
  std::vector<WorkerId> all;
  for (const auto& [worker, row] : rows_) all.push_back(worker);
  return all;
}

std::vector<WorkerId> TerminationDetector::unsettled() const {
  std::vector<WorkerId> all;
  for (const auto& [worker, row] : rows_) {
    if (!settled(row)) all.push_back(worker);
  }
  return all;
}

}  // namespace weft
