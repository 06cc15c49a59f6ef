#include "weft/comm/internal/joining.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/comm/internal/exception_text.h"
#include "weft/comm/internal/group_store.h"

namespace weft::comm_internal {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using StorePointer = c10::intrusive_ptr<c10d::Store>;

constexpr milliseconds kLongestWait = std::chrono::hours(24);  // a time that a store can count
constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLongestPause{50};
constexpr milliseconds kFarewellLook{10};
constexpr milliseconds kFarewellAnswer{500};  // the part of kFarewell for the store's last answer

// Thrown: the reason why a round has failed for all ranks that have come.
struct Fault {
  std::string text;
};

class Round {
 public:
  // Writes into `awaited` the rank that it waits for.
  Round(StorePointer store, const JoiningRank& self, std::atomic<int>& awaited)
      : store_(std::move(store)), self_(self), awaited_(awaited) {}

  // Returns the words of all ranks. Nothing: the round is over, or this rank has closed it.
  std::optional<std::vector<std::string>> meet(const std::string& word,
                                               Clock::time_point deadline) {
    if (store_->add(absl::StrCat("claims/", self_.rank, "/", self_.attempt), 1) > 1) {
      reject(absl::StrCat("two processes claim rank ", self_.rank, " of ", self_.size,
                          " (or one joins this group twice; a second group takes another name)"));
    }
    if (store_->add(absl::StrCat("attempts/", self_.rank), 1) > 1) {
      put_once("over", "1");  // an earlier attempt of this rank was in this round
      return std::nullopt;
    }
    put(key_of(self_.rank), absl::StrCat(self_.size, " ", word));
    std::vector<std::string> words;
    for (int one = 0; one < self_.size; ++one) {
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

  void put(const std::string& key, const std::string& text) {
    store_->set(key, std::vector<uint8_t>(text.begin(), text.end()));
  }
  // For keys that several ranks may write. The first one's value stays, and the store may refuse to
  // change it.
  void put_once(const std::string& key, const std::string& text) {
    (void)store_->compareSet(key, std::vector<uint8_t>(),
                             std::vector<uint8_t>(text.begin(), text.end()));
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

  // Returns the word of a rank. Nothing: the round is over.
  std::optional<std::string> read(int rank, Clock::time_point deadline) {
    awaited_ = rank;
    if (!wait(key_of(rank), deadline)) {
      if (over()) return std::nullopt;
      reject(absl::StrCat("rank ", missing(), " did not come in time"));
    }
    Told told = told_by(rank);
    if (told.size != self_.size) {
      reject(absl::StrCat(
          "the ranks were told of different world sizes: rank ", std::min(rank, self_.rank), " of ",
          rank < self_.rank ? told.size : self_.size, ", rank ", std::max(rank, self_.rank), " of ",
          rank < self_.rank ? self_.size : told.size));
    }
    return std::move(told.word);
  }

  // Waits for a key. False: the deadline has passed, or the round is over. Throws if the round has
  // failed. Stores log each wait that ends without the key, and cannot wait for one of several
  // keys. So this polls the store.
  bool wait(const std::string& key, Clock::time_point deadline) {
    for (milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
      if (over()) return false;
      if (store_->check({"fault"})) throw Fault{get("fault")};
      if (store_->check({key})) return true;
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(pause);
    }
  }

  bool over() { return store_->check({"over"}); }

  std::string missing() {
    std::vector<int> ranks;
    for (int one = 0; one < self_.size; ++one) {
      if (!store_->check({key_of(one)})) ranks.push_back(one);
    }
    return absl::StrJoin(ranks, ", ");
  }

  // Fails the round for all ranks.
  [[noreturn]] void reject(const std::string& fault) {
    put_once("fault", fault);
    throw Fault{fault};
  }

  const StorePointer store_;
  const JoiningRank& self_;
  std::atomic<int>& awaited_;
};

// The state of a rank that joins. It is shared with the thread that asks the store. This thread may
// be left behind, so the state holds everything that the thread uses.
struct Joining {
  const StorePointer store;
  const JoiningRank self;
  const std::string word;
  const Clock::time_point deadline;
  std::atomic<int> awaited = -1;  // the rank; -1: none yet
  Meeting meeting = {};           // of the current round; read only when the thread is done

  // Tries one round after another until all ranks have met.
  void run() {
    for (int number = 0;; ++number) {
      awaited = -1;
      meeting.store = c10::make_intrusive<c10d::PrefixStore>(absl::StrCat("round/", number), store);
      auto words = Round(meeting.store, self, awaited).meet(word, deadline);
      if (!words) continue;
      meeting.words = *std::move(words);
      return;
    }
  }

  // Called in a round that has failed. The store may stop together with one of the ranks. So each
  // rank waits until all know the reason, at most until `end`.
  void say_farewell(Clock::time_point end) {
    meeting.store->add("heard", 1);
    while (meeting.store->add("heard", 0) < self.size && Clock::now() < end) {
      std::this_thread::sleep_for(kFarewellLook);
    }
  }
};

}  // namespace

Meeting join_group(const StorePointer& store, const JoiningRank& self, const std::string& word,
                   milliseconds timeout, const CheckWords& check) {
  timeout = std::min(timeout, kLongestWait);
  const std::string name =
      absl::StrCat("process group '", self.group, "', rank ", self.rank, " of ", self.size);
  const std::shared_ptr<Joining> joining(new Joining{store, self, word, Clock::now() + timeout});
  StoreCaller caller;
  const auto say_farewell = [&] {
    const auto end = Clock::now() + kFarewell - kFarewellAnswer;
    try {
      caller.run([joining, end] { joining->say_farewell(end); }, end, kFarewellAnswer);
    } catch (const std::exception&) {
      // The store has stopped, so there is nobody left to wait for.
    }
  };
  const auto this_rank = [&joining] {
    const int awaited = joining->awaited;
    return absl::StrCat("this rank ",
                        awaited < 0 ? "signed in" : absl::StrCat("waited for rank ", awaited));
  };
  bool met = false;
  try {
    met = caller.run([joining] { joining->run(); }, joining->deadline);
  } catch (const Fault& fault) {
    say_farewell();
    C10_THROW_ERROR(DistBackendError, absl::StrCat(name, ": ", fault.text));
  } catch (const std::exception& failed) {
    C10_THROW_ERROR(DistNetworkError, absl::StrCat(name, ": the ", name_of(store), ": ",
                                                   text_of(failed), ", while ", this_rank()));
  }
  if (met) {
    try {
      check(joining->meeting.words);
    } catch (const c10::Error&) {
      say_farewell();
      throw;
    }
    return std::move(joining->meeting);
  }
  C10_THROW_ERROR(DistNetworkError,
                  absl::StrCat(name, ": the ", name_of(store), " did not answer within ",
                               timeout.count(), " ms, while ", this_rank()));
}

}  // namespace weft::comm_internal
