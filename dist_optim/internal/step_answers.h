// What the caller of an optimizer's step does with its owners' answers: waits for all of them, and
// repeats decisions until they are heard.
//
// Thread safety: free functions, from any thread. Nothing here blocks.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/future.h"
#include "weft/base/rpc_error.h"
#include "weft/rpc/call_scope.h"
#include "weft/rpc/runtime.h"

namespace weft::internal {

template <class T>
using Results = std::vector<absl::StatusOr<Stored<T>>>;

// Runs `then(results)` on `executor` once all futures are complete, whatever they hold.
template <class T, class Then>
void when_all(Executor* executor, std::vector<Future<T>> futures, Then then) {
  struct Gather {
    std::vector<Future<T>> futures;
    std::atomic<size_t> open;
    Executor* executor;
    std::optional<Then> then;
  };
  auto gather = std::make_shared<Gather>();
  gather->futures = std::move(futures);
  gather->open = gather->futures.size() + 1;
  gather->executor = executor;
  gather->then.emplace(std::move(then));
  const auto one_less = [gather] {
    if (gather->open.fetch_sub(1) != 1) return;
    gather->executor->schedule([gather] {
      Results<T> results;
      for (const Future<T>& future : gather->futures) results.push_back(future.result());
      gather->futures.clear();
      Then then = std::move(*gather->then);
      gather->then.reset();
      then(std::move(results));
    });
  };
  for (const Future<T>& future : gather->futures) future.state()->on_complete_inline(one_less);
  one_less();
}

// How soon a decision that an owner had no room for is sent again.
inline constexpr Nanoseconds kAgain = std::chrono::milliseconds(20);
// Sends a decision, in `scope`, again and again while it is refused for want of room. After `limit`
// the future fails; the decision goes on.
template <class R, class Send>
Future<R> insist(CallScope scope, Timeout limit, Send send) {
  struct Attempts : std::enable_shared_from_this<Attempts> {
    Attempts(CallScope s, Send f) : scope(std::move(s)), send(std::move(f)) {}
    void go() {
      Future<R> answer = Future<R>::ready(absl::CancelledError("not sent"));
      try {
        CallScopeGuard guard(scope);
        answer = send();
      } catch (const RpcError& refused) {
        answer = Future<R>::ready(refused.status());
      }
      answer.state()->on_complete_inline([self = this->shared_from_this(), answer] {
        const absl::Status& status = answer.result().status();
        if (absl::IsResourceExhausted(status) && ran_of(status) == Ran::kNo) {
          Clock& clock = self->scope.runtime->clock();
          clock.call_at(clock.now() + kAgain, [self] {
            self->scope.runtime->executor().schedule([self] { self->go(); });
          });
        } else {
          self->tell(answer.result());
        }
      });
    }
    void tell(const absl::StatusOr<Stored<R>>& result) {
      if (!told.exchange(true)) promise.set(result);
    }
    const CallScope scope;
    Send send;
    std::atomic<bool> told{false};
    Promise<R> promise{nullptr};
  };
  Clock& clock = scope.runtime->clock();
  auto attempts = std::make_shared<Attempts>(std::move(scope), std::move(send));
  Future<R> future = attempts->promise.future();
  if (!limit.infinite()) {
    const TimerId late = clock.call_at(limit.deadline_from(clock.now()), [attempts, limit] {
      const std::string span = absl::FormatDuration(absl::FromChrono(limit.limit()));
      attempts->tell(with_ran(absl::DeadlineExceededError(absl::StrCat("no answer within ", span)),
                              Ran::kMaybe));
    });
    future.state()->on_complete_inline([&clock, late] { clock.cancel(late); });
  }
  attempts->go();
  return future;
}

}  // namespace weft::internal
