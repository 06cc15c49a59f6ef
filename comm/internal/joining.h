// How the ranks of a process group meet on its store, and find out who does not belong.
//
// A meeting is a round. A rank that a launcher has started again finds its place taken by its
// former incarnation: it closes that round, and all meet in the next one. Two processes that claim
// one rank in the same life, or ranks that were told of different numbers of ranks, fail the round
// for all who have come.
//
// Thread safety: free functions. Blocking: until all ranks have come, no longer than the timeout,
// and two seconds more where the store does not answer; in a round that has failed up to three
// seconds more, for the others to hear why. Errors: c10::DistBackendError naming the ranks that did
// not come or do not fit, the same for all who have come; c10::DistNetworkError where the store is
// lost or does not answer, naming it and what was waited for.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft::comm_internal {

struct JoiningRank {
  std::string group;  // for errors
  int rank = 0;
  int size = 1;
  uint32_t attempt = 0;  // how often this rank has been started again
};

struct Meeting {
  c10::intrusive_ptr<c10d::Store> store;  // of this round alone
  std::vector<std::string> words;         // what each rank said, by rank
};

Meeting join_group(const c10::intrusive_ptr<c10d::Store>& store, const JoiningRank& self,
                   const std::string& word, std::chrono::milliseconds timeout);

}  // namespace weft::comm_internal
