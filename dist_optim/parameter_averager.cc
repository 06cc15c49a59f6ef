#include "weft/dist_optim/parameter_averager.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include <c10/core/GradMode.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/mutex.h"
#include "weft/rpc/internal/worker_runtime.h"

namespace weft {
namespace {

using Tensors = std::vector<at::Tensor>;

// Deaths are looked for while a round is open: nobody announces them to an object.
constexpr Nanoseconds kLook = std::chrono::milliseconds(20);
constexpr size_t kKeptRounds = 4;

ParameterAverager::Surroundings current_surroundings() {
  auto runtime = internal::current_runtime();
  if (!runtime.ok()) throw RpcError(runtime.status());
  auto worker = std::dynamic_pointer_cast<internal::WorkerRuntime>(*runtime);
  if (worker == nullptr) throw std::logic_error("ParameterAverager needs a joined worker");
  // Weak: the runtime owns, at the end, the objects that live on it.
  std::weak_ptr<internal::WorkerRuntime> weak = worker;
  return {worker->clock(), worker->executor(),
          [weak](WorkerId id) {
            const auto live = weak.lock();
            return live != nullptr && (id == live->id() || live->agent().is_live(id));
          },
          [weak](const std::string& name) -> absl::StatusOr<WorkerId> {
            const auto live = weak.lock();
            if (live == nullptr) return absl::CancelledError("the worker has ended");
            return live->resolve(name);
          }};
}

bool same_shapes(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type();
  });
}

Tensors mean(const std::vector<const Tensors*>& contributions) {
  c10::AutoGradMode no_grad(false);
  Tensors sums;
  for (const at::Tensor& first : *contributions.front()) sums.push_back(first.detach().clone());
  for (size_t i = 1; i < contributions.size(); ++i) {
    for (size_t t = 0; t < sums.size(); ++t) sums[t].add_((*contributions[i])[t]);
  }
  for (at::Tensor& sum : sums) sum.div_(static_cast<double>(contributions.size()));
  return sums;
}

}  // namespace

struct ParameterAverager::State : std::enable_shared_from_this<State> {
  struct Participant {
    WorkerId id;  // invalid until heard of
    bool left = false;
  };
  struct Round {
    TimePoint deadline;
    std::map<std::string, Tensors> values;  // by participant
    std::vector<Promise<Tensors>> waiting;
  };
  struct Ending {  // a round to end once the lock is free
    int64_t number = 0;
    Round round;
    absl::Status failure;
  };

  State(Surroundings s, Nanoseconds timeout) : surroundings(std::move(s)), limit(timeout) {}

  Future<Tensors> add(WorkerId id, const std::string& name, int64_t number, Tensors values);
  void leave(const std::string& name);
  // Ends every round that is complete or late.
  void review();
  void look_later();
  void end(Ending ending);
  // Who is alive and has not contributed; drops the values of the dead.
  std::vector<std::string> missing(Round& round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  const Surroundings surroundings;
  const Nanoseconds limit;
  Mutex mutex;
  std::map<std::string, Participant> participants ABSL_GUARDED_BY(mutex);
  std::map<int64_t, Round> open ABSL_GUARDED_BY(mutex);
  // Ended ones: the future of the average, which may still be being computed.
  std::map<int64_t, Future<Tensors>> ended ABSL_GUARDED_BY(mutex);
  bool looking ABSL_GUARDED_BY(mutex) = false;
};

Future<Tensors> ParameterAverager::State::add(WorkerId id, const std::string& name, int64_t number,
                                              Tensors values) {
  Future<Tensors> result;
  {
    MutexLock lock(mutex);
    const auto participant = participants.find(name);
    if (participant == participants.end()) {
      return Future<Tensors>::ready(
          absl::InvalidArgumentError(absl::StrCat(name, " is not a participant of the average")));
    }
    participant->second = {id, false};
    if (const auto late = ended.find(number); late != ended.end()) return late->second;
    if (!ended.empty() && number < ended.begin()->first) {
      return Future<Tensors>::ready(
          absl::FailedPreconditionError(absl::StrCat("round ", number, " is over")));
    }
    const auto [place, first] = open.try_emplace(number);
    Round& round = place->second;
    if (first) {
      round.deadline = limit == Nanoseconds::max() ? kNever : surroundings.clock.now() + limit;
    }
    if (!round.values.empty() && !same_shapes(round.values.begin()->second, values)) {
      return Future<Tensors>::ready(absl::InvalidArgumentError(
          absl::StrCat("the values of ", name, " have other shapes than those of ",
                       round.values.begin()->first, " in round ", number)));
    }
    round.values.try_emplace(name, std::move(values));
    result = round.waiting.emplace_back(&surroundings.executor).future();
  }
  review();
  return result;
}

void ParameterAverager::State::leave(const std::string& name) {
  {
    MutexLock lock(mutex);
    const auto participant = participants.find(name);
    if (participant == participants.end()) return;
    participant->second.left = true;
  }
  review();
}

std::vector<std::string> ParameterAverager::State::missing(Round& round) {
  std::vector<std::string> names;
  for (auto& [name, participant] : participants) {
    if (!participant.id.valid()) {
      const absl::StatusOr<WorkerId> id = surroundings.resolve(name);
      if (id.ok()) participant.id = *id;
    }
    // Never heard of by this worker: it has yet to join, and the round's deadline bounds the wait.
    const bool dead = participant.id.valid() && !surroundings.is_live(participant.id);
    if (dead) {
      round.values.erase(name);
    } else if (!participant.left && !round.values.contains(name)) {
      names.push_back(name);
    }
  }
  return names;
}

void ParameterAverager::State::review() {
  std::vector<Ending> endings;
  bool look = false;
  {
    MutexLock lock(mutex);
    for (auto place = open.begin(); place != open.end();) {
      Round& round = place->second;
      const std::vector<std::string> names = missing(round);
      const bool late = surroundings.clock.now() >= round.deadline;
      if (!names.empty() && !late) {
        ++place;
        continue;
      }
      Ending& ending = endings.emplace_back();
      ending.number = place->first;
      if (!names.empty()) {
        ending.failure = absl::DeadlineExceededError(
            absl::StrCat("round ", place->first, " waited for ", absl::StrJoin(names, ", ")));
      }
      // One more promise, whose future is the round's memory.
      ended.emplace(place->first, round.waiting.emplace_back(&surroundings.executor).future());
      ending.round = std::move(round);
      place = open.erase(place);
    }
    while (ended.size() > kKeptRounds) ended.erase(ended.begin());
    look = !open.empty() && !std::exchange(looking, !open.empty());
  }
  for (Ending& ending : endings) end(std::move(ending));
  if (look) look_later();
}

void ParameterAverager::State::look_later() {
  surroundings.clock.call_at(surroundings.clock.now() + kLook, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    {
      MutexLock lock(self->mutex);
      self->looking = false;
    }
    self->review();
  });
}

void ParameterAverager::State::end(Ending ending) {
  surroundings.executor.schedule([ending = std::move(ending)]() mutable {
    absl::StatusOr<Tensors> average = absl::UnavailableError("every participant is gone");
    std::vector<const Tensors*> contributions;
    for (const auto& [name, values] : ending.round.values) contributions.push_back(&values);
    if (!ending.failure.ok()) {
      average = ending.failure;
    } else if (!contributions.empty()) {
      try {
        average = mean(contributions);
      } catch (...) {
        average = internal::status_of_current_exception();
      }
    }
    for (Promise<Tensors>& promise : ending.round.waiting) promise.set(average);
  });
}

ParameterAverager::ParameterAverager(std::vector<std::string> participants, double round_timeout_s)
    : ParameterAverager(std::move(participants), round_timeout_s, current_surroundings()) {}

ParameterAverager::ParameterAverager(std::vector<std::string> participants, double round_timeout_s,
                                     Surroundings surroundings)
    : state_(std::make_shared<State>(std::move(surroundings),
                                     Timeout(absl::Seconds(round_timeout_s)).limit())) {
  if (participants.empty()) throw std::invalid_argument("an average without participants");
  MutexLock lock(state_->mutex);
  for (std::string& name : participants) state_->participants[std::move(name)];
}

ParameterAverager::~ParameterAverager() = default;

Future<Tensors> ParameterAverager::average(CallContext& caller, int64_t round, Tensors values) {
  return state_->add(caller.caller(), caller.caller_name(), round, std::move(values));
}

void ParameterAverager::leave(CallContext& caller) { state_->leave(caller.caller_name()); }

}  // namespace weft
