#include "weft/comm/internal/joining.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::internal {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using StorePointer = c10::intrusive_ptr<c10d::Store>;

constexpr milliseconds kLongestWait = std::chrono::hours(24);  // fits what a store counts in
constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLongestPause{50};
constexpr milliseconds kFarewell{3000};  // that who fails gives the others to hear why
constexpr milliseconds kFarewellLook{10};

[[noreturn]] void fail(const std::string& text) { C10_THROW_ERROR(DistBackendError, text); }

class Round {
 public:
  Round(StorePointer store, const Place& place) : store_(std::move(store)), place_(place) {}

  // What the ranks said. Nothing: the round is over, or was before this rank came.
  std::optional<std::vector<std::string>> meet(const std::string& word,
                                               Clock::time_point deadline) {
    if (store_->add(absl::StrCat("claims/", place_.rank, "/", place_.life), 1) > 1) {
      reject(absl::StrCat("two processes claim rank ", place_.rank, " of ", place_.size,
                          " (or one joins this group twice; a second group takes another name)"));
    }
    if (store_->add(absl::StrCat("lives/", place_.rank), 1) > 1) {
      put("over", "");  // a former life was here
      return std::nullopt;
    }
    put(key_of(place_.rank), absl::StrCat(place_.size, " ", word));
    std::vector<std::string> words;
    for (int one = 0; one < place_.size; ++one) {
      std::optional<std::string> text = read(one, deadline);
      if (!text) return std::nullopt;
      words.push_back(*std::move(text));
    }
    return words;
  }

 private:
  struct Told {
    int size = 0;
    std::string word;
  };

  static std::string key_of(int rank) { return absl::StrCat("member/", rank); }

  std::string name() const {
    return absl::StrCat("process group '", place_.group, "', rank ", place_.rank, " of ",
                        place_.size);
  }

  void put(const std::string& key, const std::string& text) {
    store_->set(key, std::vector<uint8_t>(text.begin(), text.end()));
  }
  std::string get(const std::string& key) {
    const std::vector<uint8_t> bytes = store_->get(key);
    return {bytes.begin(), bytes.end()};
  }
  Told told_by(int rank) {
    const std::string text = get(key_of(rank));
    Told told;
    const size_t space = text.find(' ');
    if (space == std::string::npos || !absl::SimpleAtoi(text.substr(0, space), &told.size)) {
      reject(absl::StrCat("rank ", rank, " said what this version does not understand: ", text));
    }
    told.word = text.substr(space + 1);
    return told;
  }

  // What a rank said. Nothing: the round is over.
  std::optional<std::string> read(int rank, Clock::time_point deadline) {
    if (!wait(key_of(rank), deadline)) {
      if (over()) return std::nullopt;
      reject(absl::StrCat("rank ", missing(), " did not come in time"));
    }
    Told told = told_by(rank);
    if (told.size != place_.size) {
      reject(absl::StrCat(
          "the ranks were told of different world sizes: rank ", std::min(rank, place_.rank),
          " of ", rank < place_.rank ? told.size : place_.size, ", rank ",
          std::max(rank, place_.rank), " of ", rank < place_.rank ? place_.size : told.size));
    }
    return std::move(told.word);
  }

  // False: too late, or the round is over. Throws if it has failed. Stores log each wait that ends
  // without the key, and cannot wait for one of several, so this asks again and again.
  bool wait(const std::string& key, Clock::time_point deadline) {
    for (milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
      if (over()) return false;
      if (store_->check({"fault"})) leave(get("fault"));
      if (store_->check({key})) return true;
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(pause);
    }
  }

  bool over() { return store_->check({"over"}); }

  std::string missing() {
    std::vector<int> ranks;
    for (int one = 0; one < place_.size; ++one) {
      if (!store_->check({key_of(one)})) ranks.push_back(one);
    }
    return absl::StrJoin(ranks, ", ");
  }

  // Fails the round for all.
  [[noreturn]] void reject(const std::string& fault) {
    put("fault", fault);
    leave(fault);
  }

  // The store may end with one of the ranks, so each waits a little until all know.
  [[noreturn]] void leave(const std::string& fault) {
    const auto end = Clock::now() + kFarewell;
    try {
      store_->add("heard", 1);
      while (store_->add("heard", 0) < place_.size && Clock::now() < end) {
        std::this_thread::sleep_for(kFarewellLook);
      }
    } catch (const std::exception&) {
      // It has ended: all the others have gone.
    }
    fail(absl::StrCat(name(), ": ", fault));
  }

  const StorePointer store_;
  const Place& place_;
};

}  // namespace

Meeting join_group(const StorePointer& store, const Place& place, const std::string& word,
                   milliseconds timeout) {
  const auto deadline = Clock::now() + std::min(timeout, kLongestWait);
  for (int number = 0;; ++number) {
    StorePointer own =
        c10::make_intrusive<c10d::PrefixStore>(absl::StrCat("round/", number), store);
    try {
      auto words = Round(own, place).meet(word, deadline);
      if (words) return {std::move(own), *std::move(words)};
    } catch (const c10::DistBackendError&) {
      throw;
    } catch (const std::exception& failed) {
      C10_THROW_ERROR(DistNetworkError,
                      absl::StrCat("process group '", place.group, "', rank ", place.rank, " of ",
                                   place.size, ": the rendezvous store: ", failed.what()));
    }
  }
}

}  // namespace weft::internal
