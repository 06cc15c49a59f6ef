// Repeats a decision until its receiver has room for it.
//
// Thread safety: may be called from any thread.
// Blocking: never.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/async/future.h"
#include "weft/base/rpc_error.h"
#include "weft/rpc/runtime.h"
#include "weft/rpc/session/call_scope.h"

namespace weft::dist_optim_internal {

// A decision that an owner had no room for is sent again after this time.
inline constexpr Nanoseconds kAgain = std::chrono::milliseconds(20);
// Sends a decision in `scope`. While the receiver refuses it with ResourceExhausted and has not
// executed it, sends it again. After `limit` the future fails, but the decision is still sent.
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
    void tell(const absl::StatusOr<async_internal::Stored<R>>& result) {
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

}  // namespace weft::dist_optim_internal
