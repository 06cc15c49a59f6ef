#include "weft/dist_optim/parameter_averager.h"

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <utility>

#include <c10/core/GradMode.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/mutex.h"
#include "weft/rpc/worker_runtime.h"

namespace weft {
namespace {

using Tensors = std::vector<at::Tensor>;

// How often deaths are looked for while a round is open. Objects get no notice of a worker's death.
constexpr Nanoseconds kLook = std::chrono::milliseconds(20);
constexpr size_t kKeptRounds = 8;
constexpr int64_t kBeforeAll = std::numeric_limits<int64_t>::min();

ParameterAverager::Surroundings current_surroundings() {
  auto runtime = rpc_internal::current_runtime();
  if (!runtime.ok()) throw RpcError(runtime.status());
  auto worker = std::dynamic_pointer_cast<rpc_internal::WorkerRuntime>(*runtime);
  if (worker == nullptr) throw std::logic_error("ParameterAverager needs a joined worker");
  // Weak: the runtime owns the objects that live on it, so a strong reference would be a cycle.
  std::weak_ptr<rpc_internal::WorkerRuntime> weak = worker;
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

absl::Status not_a_participant(const std::string& name) {
  return absl::InvalidArgumentError(absl::StrCat(name, " is not a participant of the average"));
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
    WorkerId id;  // invalid until it is known
    bool left = false;
    bool entering = false;
    int64_t reached = kBeforeAll;  // rounds up to this one do not wait for it
  };
  struct Round {
    TimePoint deadline;
    std::map<std::string, Tensors> values;  // by participant
    std::vector<Promise<Tensors>> waiting;
  };
  struct Entrance {
    TimePoint deadline;
    Promise<AveragedRound> promise;
  };
  struct Ending {  // a round to complete once the lock is free
    int64_t number = 0;
    Round round;
    absl::Status failure;
    std::vector<Promise<AveragedRound>> entering;  // to be completed with this round
  };
  struct Refusal {
    Promise<AveragedRound> promise;
    absl::Status why;
  };

  State(Surroundings s, Nanoseconds timeout) : surroundings(std::move(s)), limit(timeout) {}

  Future<Tensors> add(WorkerId id, const std::string& name, int64_t number, Tensors values);
  Future<AveragedRound> enter(WorkerId id, const std::string& name);
  void restore(WorkerId id, const std::string& name, std::vector<AveragedRound> rounds);
  void leave(const std::string& name);
  // Completes each round that has all its values or is late, and the entrances that wait for one.
  void review();
  void look_later();
  void end(Ending ending);
  TimePoint deadline() const {
    return limit == Nanoseconds::max() ? kNever : surroundings.clock.now() + limit;
  }
  // Null: the name is not a participant's.
  Participant* heard_of(WorkerId id, const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  bool is_dead(Participant& participant, const std::string& name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // The live participants whose values the round waits for. Drops the values of the dead.
  std::vector<std::string> missing(int64_t number, Round& round)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void remember(int64_t number, Future<Tensors> average) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Takes the promises of all that wait in `enter`; they get round `number`, which is complete.
  std::vector<Promise<AveragedRound>> let_enter(int64_t number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Takes the entrances that fail: late ones, those of dead participants, or all if nobody can
  // complete a round.
  std::vector<Refusal> refuse_entrances() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  const Surroundings surroundings;
  const Nanoseconds limit;
  Mutex mutex;
  std::map<std::string, Participant> participants ABSL_GUARDED_BY(mutex);
  std::map<int64_t, Round> open ABSL_GUARDED_BY(mutex);
  // Complete rounds. The average of one may still be being computed.
  std::map<int64_t, Future<Tensors>> ended ABSL_GUARDED_BY(mutex);
  int64_t forgotten ABSL_GUARDED_BY(mutex) = kBeforeAll;  // the newest that left `ended`
  std::map<std::string, Entrance> entrances ABSL_GUARDED_BY(mutex);
  bool looking ABSL_GUARDED_BY(mutex) = false;
};

ParameterAverager::State::Participant* ParameterAverager::State::heard_of(WorkerId id,
                                                                          const std::string& name) {
  const auto found = participants.find(name);
  if (found == participants.end()) return nullptr;
  Participant& participant = found->second;
  if (participant.id != id) {  // an earlier incarnation gave the values
    for (auto& [number, round] : open) round.values.erase(name);
    participant = {id};
  }
  participant.left = participant.entering = false;
  return &participant;
}

Future<Tensors> ParameterAverager::State::add(WorkerId id, const std::string& name, int64_t number,
                                              Tensors values) {
  Future<Tensors> result;
  {
    MutexLock lock(mutex);
    Participant* participant = heard_of(id, name);
    if (participant == nullptr) return Future<Tensors>::ready(not_a_participant(name));
    if (const auto late = ended.find(number); late != ended.end()) {
      result = late->second;
    } else if (number <= forgotten) {
      return Future<Tensors>::ready(
          absl::FailedPreconditionError(absl::StrCat("round ", number, " is over")));
    } else {
      const auto [place, first] = open.try_emplace(number);
      Round& round = place->second;
      if (first) round.deadline = deadline();
      if (!round.values.empty() && !same_shapes(round.values.begin()->second, values)) {
        return Future<Tensors>::ready(absl::InvalidArgumentError(
            absl::StrCat("the values of ", name, " have other shapes than those of ",
                         round.values.begin()->first, " in round ", number)));
      }
      round.values.try_emplace(name, std::move(values));
      result = round.waiting.emplace_back(&surroundings.executor).future();
    }
    participant->reached = std::max(participant->reached, number);
  }
  review();  // earlier rounds no longer wait for this participant either
  return result;
}

Future<AveragedRound> ParameterAverager::State::enter(WorkerId id, const std::string& name) {
  Future<AveragedRound> result;
  {
    MutexLock lock(mutex);
    Participant* participant = heard_of(id, name);
    if (participant == nullptr) return Future<AveragedRound>::ready(not_a_participant(name));
    if (!ended.empty()) {
      const int64_t number = participant->reached = ended.rbegin()->first;
      result = ended.rbegin()->second.then(&surroundings.executor,
                                           [number](const Future<Tensors>& average) {
                                             return AveragedRound{number, average.wait()};
                                           });
    } else {
      participant->entering = true;
      Entrance entrance{deadline(), Promise<AveragedRound>(&surroundings.executor)};
      result = entrance.promise.future();
      entrances.insert_or_assign(name, std::move(entrance));
    }
  }
  review();
  return result;
}

void ParameterAverager::State::restore(WorkerId id, const std::string& name,
                                       std::vector<AveragedRound> rounds) {
  std::vector<std::pair<Promise<Tensors>, Tensors>> answers;
  std::vector<Promise<AveragedRound>> entering;
  AveragedRound newest;
  {
    MutexLock lock(mutex);
    Participant* participant = heard_of(id, name);
    if (participant == nullptr) throw RpcError(not_a_participant(name));
    for (AveragedRound& round : rounds) {
      participant->reached = std::max(participant->reached, round.number);
      if (ended.contains(round.number) || round.number <= forgotten) continue;
      if (const auto place = open.find(round.number); place != open.end()) {
        for (Promise<Tensors>& promise : place->second.waiting) {
          answers.emplace_back(std::move(promise), round.average);
        }
        open.erase(place);
      }
      remember(round.number, Future<Tensors>::ready(round.average));
      if (newest.average.empty() || round.number > newest.number) newest = std::move(round);
    }
    if (!newest.average.empty()) entering = let_enter(newest.number);
  }
  for (auto& [promise, average] : answers) promise.set(std::move(average));
  for (Promise<AveragedRound>& promise : entering) promise.set(newest);
  review();
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

bool ParameterAverager::State::is_dead(Participant& participant, const std::string& name) const {
  if (!participant.id.valid()) {
    const absl::StatusOr<WorkerId> id = surroundings.resolve(name);
    if (id.ok()) participant.id = *id;
  }
  // The worker does not know this name yet, so the participant has yet to join. The round's
  // deadline limits the wait.
  return participant.id.valid() && !surroundings.is_live(participant.id);
}

std::vector<std::string> ParameterAverager::State::missing(int64_t number, Round& round) {
  std::vector<std::string> names;
  for (auto& [name, participant] : participants) {
    if (is_dead(participant, name)) {
      round.values.erase(name);
    } else if (!participant.left && !participant.entering && participant.reached < number) {
      names.push_back(name);
    }
  }
  return names;
}

void ParameterAverager::State::remember(int64_t number, Future<Tensors> average) {
  ended.emplace(number, std::move(average));
  while (ended.size() > kKeptRounds) {
    forgotten = std::max(forgotten, ended.begin()->first);
    ended.erase(ended.begin());
  }
}

std::vector<Promise<AveragedRound>> ParameterAverager::State::let_enter(int64_t number) {
  std::vector<Promise<AveragedRound>> entering;
  for (auto& [name, entrance] : entrances) {
    Participant& participant = participants.at(name);
    participant.entering = false;
    participant.reached = number;
    entering.push_back(std::move(entrance.promise));
  }
  entrances.clear();
  return entering;
}

std::vector<ParameterAverager::State::Refusal> ParameterAverager::State::refuse_entrances() {
  std::vector<Refusal> refusals;
  if (entrances.empty()) return refusals;
  // Whether any participant may still complete a round.
  bool hope = false;
  for (auto& [name, one] : participants) {
    hope = hope || (!one.left && !one.entering && !is_dead(one, name));
  }
  for (auto place = entrances.begin(); place != entrances.end();) {
    Participant& participant = participants.at(place->first);
    const bool late = surroundings.clock.now() >= place->second.deadline;
    if (hope && !late && !is_dead(participant, place->first)) {
      ++place;
      continue;
    }
    participant.entering = false;
    refusals.push_back({std::move(place->second.promise),
                        hope ? absl::DeadlineExceededError("no round has ended in time")
                             : absl::NotFoundError("no participant knows a round")});
    place = entrances.erase(place);
  }
  return refusals;
}

void ParameterAverager::State::review() {
  std::vector<Ending> endings;
  std::vector<Refusal> refusals;
  bool look = false;
  {
    MutexLock lock(mutex);
    for (auto place = open.begin(); place != open.end();) {
      Round& round = place->second;
      const std::vector<std::string> names = missing(place->first, round);
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
      // If every giver of values is dead, there is no result to remember.
      if (!names.empty() || !round.values.empty()) {
        // The round is remembered by the future of one more promise.
        remember(place->first, round.waiting.emplace_back(&surroundings.executor).future());
        if (names.empty()) ending.entering = let_enter(place->first);
      }
      ending.round = std::move(round);
      place = open.erase(place);
    }
    refusals = refuse_entrances();
    const bool waiting = !open.empty() || !entrances.empty();
    look = waiting && !std::exchange(looking, waiting);
  }
  for (Ending& ending : endings) end(std::move(ending));
  for (Refusal& refusal : refusals) refusal.promise.set(std::move(refusal.why));
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
        average = async_internal::status_of_current_exception();
      }
    }
    for (Promise<Tensors>& promise : ending.round.waiting) promise.set(average);
    for (Promise<AveragedRound>& promise : ending.entering) {
      promise.set(average.ok() ? AveragedRound{ending.number, *average}
                               : absl::StatusOr<AveragedRound>(average.status()));
    }
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

Future<AveragedRound> ParameterAverager::enter(CallContext& caller) {
  return state_->enter(caller.caller(), caller.caller_name());
}

void ParameterAverager::restore(CallContext& caller, std::vector<AveragedRound> rounds) {
  state_->restore(caller.caller(), caller.caller_name(), std::move(rounds));
}

void ParameterAverager::leave(CallContext& caller) { state_->leave(caller.caller_name()); }

WEFT_DEFINE_CLASS(ParameterAverager);

}  // namespace weft
