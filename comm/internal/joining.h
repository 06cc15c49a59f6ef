// Lets the ranks of a process group meet on its store, and finds processes that do not belong.
//
// The ranks meet in rounds. If a launcher has restarted a rank, the rank finds that an earlier
// attempt of it has taken part in this round. It closes this round, and all ranks meet in the next
// one. A round fails for all ranks that have come in two cases. Two processes claim one rank in the
// same attempt, or ranks were told different world sizes.
//
// Thread safety: free functions.
// Blocking: until all ranks have come, at most for the timeout. If the store does not answer, it
// takes two seconds more. In a round that has failed, it takes up to kFarewell more, so that the
// other ranks can read the reason.
// Errors: c10::DistBackendError names the ranks that did not come or do not fit. It is the same for
// all ranks that have come. c10::DistNetworkError: the store is lost or does not answer. It names
// the store and, if the store does not answer, the rank that this one waited for.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft::comm_internal {

inline constexpr std::chrono::milliseconds kFarewell{3000};

struct JoiningRank {
  std::string group;  // for errors
  int rank = 0;
  int size = 1;
  uint32_t attempt = 0;  // the attempt: how often this rank has been restarted
};

struct Meeting {
  c10::intrusive_ptr<c10d::Store> store;  // for this round alone
  std::vector<std::string> words;         // by rank: the `word` of each rank
};

// Throws a c10::Error if the words do not go together. All ranks must find the same.
using CheckWords = std::function<void(const std::vector<std::string>& words)>;

// `word` is a text for the other ranks. If `check` throws, this waits as for a round that has
// failed.
Meeting join_group(
    const c10::intrusive_ptr<c10d::Store>& store, const JoiningRank& self, const std::string& word,
    std::chrono::milliseconds timeout,
    const CheckWords& check = [](const std::vector<std::string>&) {});

}  // namespace weft::comm_internal
