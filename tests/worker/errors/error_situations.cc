#include "weft/tests/worker/errors/error_situations.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "weft/dist_autograd/context.h"
#include "weft/rpc/aten/aten.h"
#include "weft/rpc/class.h"
#include "weft/rpc/rendezvous/death_records.h"
#include "weft/rpc/verbs.h"
#include "weft/rref/internal/ownership_types.h"
#include "weft/rref/rref.h"
#include "weft/tests/support/worker_world.h"
#include "weft/tests/worker/raw_peer.h"

namespace errors_test {

using namespace std::chrono_literals;
using weft::CallContext;
using weft::FrameHeader;
using weft::FrameKind;
using weft::Future;
using weft::InprocNetwork;
using weft::Promise;
using weft::Ran;
using weft::RRef;
using weft::WorkerOptions;
using weft::testing::RawPeer;
using weft::testing::WorkerWorld;
using Statuses = std::vector<absl::Status>;

// ---- Functions that the workers can run.

// Holds handlers until the test releases them.
struct Latch {
  weft::Mutex mutex;
  weft::CondVar changed;
  bool open ABSL_GUARDED_BY(mutex) = false;
  int arrived ABSL_GUARDED_BY(mutex) = 0;

  void close() {
    weft::MutexLock lock(mutex);
    open = false;
    arrived = 0;
  }
  void release() {
    weft::MutexLock lock(mutex);
    open = true;
    changed.notify_all();
  }
  void pass() {
    weft::MutexLock lock(mutex);
    ++arrived;
    changed.notify_all();
    while (!open) changed.wait(mutex);
  }
  void wait_for_one() {
    weft::MutexLock lock(mutex);
    while (arrived == 0) changed.wait(mutex);
  }
};
Latch latch;
void hold() { latch.pass(); }
WEFT_REGISTER_FUNCTION(hold);
int64_t same(int64_t value) { return value; }
WEFT_REGISTER_FUNCTION(same);
int reserved() { return 0; }
WEFT_REGISTER_FUNCTION(reserved, weft::Access{"trainer"});

struct Thing {};  // no what(), no base
int64_t throws(int64_t kind) {
  switch (kind) {
    case 0:
      throw weft::RpcError(absl::OutOfRangeError("row 7"));
    case 1:
      throw 1;
    case 2:
      throw std::runtime_error("went wrong");
    default:
      throw Thing();
  }
}
WEFT_REGISTER_FUNCTION(throws);
absl::Status bad_status() { return absl::DataLossError("disk"); }
WEFT_REGISTER_FUNCTION(bad_status);
absl::StatusOr<int64_t> bad_value() { return absl::DataLossError("disk"); }
WEFT_REGISTER_FUNCTION(bad_value);
Future<int64_t> forgotten() {
  Promise<int64_t> promise;
  return promise.future();
}
WEFT_REGISTER_FUNCTION(forgotten);

int64_t count(const at::Tensor& tensor) { return tensor.numel(); }
WEFT_REGISTER_FUNCTION(count);
at::Tensor nowhere() { return at::empty({2}, at::device(at::kMeta)); }
WEFT_REGISTER_FUNCTION(nowhere);

// Larger than a message may be. Nobody touches it, so it takes no memory.
at::Tensor huge() { return at::empty({(int64_t{1} << 29) + 1}, at::dtype(at::kDouble)); }
WEFT_REGISTER_FUNCTION(huge);
at::Tensor large() { return at::ones({(int64_t{80} << 20) / 4}, at::dtype(at::kFloat)); }
WEFT_REGISTER_FUNCTION(large);

// A type whose decoder refuses 13.
struct Picky {
  int64_t value = 0;
};
}  // namespace errors_test

template <>
struct weft::Codec<errors_test::Picky> {
  static void encode(Writer& writer, const errors_test::Picky& picky) {
    writer.scalar(picky.value);
  }
  static errors_test::Picky decode(Reader& reader) {
    const auto value = reader.scalar<int64_t>();
    if (value == 13) reader.fail("13 is not read");
    return {value};
  }
  static void schema(SchemaBuilder& schema) { schema.text("picky"); }
};

namespace errors_test {

int64_t unpack(const Picky& picky) { return picky.value; }
WEFT_REGISTER_FUNCTION(unpack);
Picky pack(int64_t value) { return {value}; }
WEFT_REGISTER_FUNCTION(pack);
Future<int64_t> no_future() { return {}; }
WEFT_REGISTER_FUNCTION(no_future);

int64_t unregistered(int64_t value) { return value; }
constexpr auto negate = weft::aten("aten::neg");
inline constexpr weft::Function<int64_t(int64_t)> elsewhere{"serving::infer"};
inline constexpr weft::Function<int64_t(at::Tensor)> same_of_tensor{"errors_test::same"};

class Turnstile {
 public:
  int64_t pass() { return 1; }
  int64_t again(const RRef<Turnstile>& self) { return self.rpc_sync(&Turnstile::pass); }
};
WEFT_REGISTER_CLASS(Turnstile, weft::constructor<>(), &Turnstile::pass, &Turnstile::again,
                    weft::serial);
int64_t read(const RRef<int64_t>& value) { return value.to_here(); }
WEFT_REGISTER_FUNCTION(read);

// Two calls back to the caller. The bytes of the first leave no credit for the second.
struct Pair {
  Future<int64_t> first, second;
};
Promise<Pair> pair_made{nullptr};
Future<int64_t> call_back_twice(CallContext& context) {
  Pair pair{weft::rpc_async(context.caller(), same, 1), weft::rpc_async(context.caller(), same, 2)};
  pair_made.set(pair);
  return pair.second;
}
WEFT_REGISTER_FUNCTION(call_back_twice);

// ---- How each row of the table is made to happen

template <class T>
absl::Status of(const Future<T>& future) {
  return future.result().status();
}
template <class F>
absl::Status thrown_by(F f) {
  try {
    (void)f();
  } catch (const weft::RpcError& error) {
    return error.status();
  }
  return absl::OkStatus();
}

// Makes calls from worker 0 and returns their errors. Afterwards worker 1 must still answer.
using Call = std::function<absl::Status()>;
Statuses call(const std::vector<Call>& calls) {
  WorkerWorld world(
      2, [](size_t, WorkerOptions& options) { options.allow_operators = {"aten::neg"}; });
  Statuses statuses;
  {
    weft::WorkerScope scope(world[0]);
    for (const Call& each : calls) statuses.push_back(each());
    EXPECT_EQ(weft::rpc_sync("worker1", same, 42), 42);
  }
  world.shutdown_all();  // nothing of the calls is left
  return statuses;
}

// Returns the error of a call that worker 1 runs when `end` happens, or of one that is made
// afterwards.
enum Which { kSentBefore, kMadeAfter };
Statuses around(Which which, const std::function<void(WorkerWorld&)>& end) {
  latch.close();
  WorkerWorld world(2);
  const weft::Destination there = world[0].to("worker1");
  const Future<void> sent = weft::rpc_async(there, hold);
  latch.wait_for_one();
  end(world);
  Statuses statuses{of(sent)};
  statuses.push_back(of(weft::rpc_async(there, same, 1)));
  latch.release();
  return {statuses[which]};
}
void die(WorkerWorld& world) { world.kill(1); }
void leave(WorkerWorld& world) {
  // Nobody waits for it, because worker 1's handler runs until the latch opens.
  (void)world[1].shutdown_async({.graceful = false});
}
// Appends a death record of worker0. Then worker1 is killed: worker0 misses it, and so reads the
// list.
void be_fenced(WorkerWorld& world) {
  weft::DeathRecords list(world.store(), "weft", 0);
  ASSERT_TRUE(list.declare_dead(world[1].id(), world[0].id(), "was silent").ok());
  world.kill(1);
}
void end_here(WorkerWorld& world) { world[0].shutdown({.graceful = false}); }

void one_credit(size_t, WorkerOptions& options) {
  options.call_credits = 1;
  options.byte_credits = 1;  // calls inside handlers take only these
  options.max_queued_calls = 1;
}
void one_thread(size_t, WorkerOptions& options) { options.threads = options.max_threads = 1; }

// Calls of this worker never arrive, so it never gets its credit back.
void lose_calls_of(uint32_t caller, WorkerWorld& world) {
  world.network().set_filter([caller](const FrameHeader& header) {
    return header.kind == FrameKind::kCall && header.source.index == caller
               ? InprocNetwork::Fate::kDrop
               : InprocNetwork::Fate::kDeliver;
  });
}

Statuses result_is_lost() {
  WorkerWorld world(2);
  auto dropped = std::make_shared<std::atomic<bool>>(false);
  world.network().set_filter([dropped](const FrameHeader& header) {
    if (header.kind != FrameKind::kReply) return InprocNetwork::Fate::kDeliver;
    *dropped = true;
    return InprocNetwork::Fate::kDrop;
  });
  const Future<at::Tensor> result = weft::rpc_async(world[0].to("worker1"), large);
  while (!*dropped) std::this_thread::yield();
  world.network().set_filter(nullptr);
  world.network().sever(world[0].workers()[0].address, world[0].workers()[1].address);
  Statuses statuses{of(result)};
  world.shutdown_all();
  return statuses;
}

Statuses local_queue_is_full() {
  WorkerWorld world(2, one_credit);
  lose_calls_of(0, world);
  const weft::Destination there = world[0].to("worker1");
  const Future<int64_t> sent = weft::rpc_async(there, same, 1);
  const Future<int64_t> queued = weft::rpc_async(there, same, 2);
  return {of(weft::rpc_async(there, same, 3))};
}

Statuses no_thread_is_left() {
  latch.close();
  WorkerWorld world(2, one_thread);
  const weft::Destination there = world[0].to("worker1");
  const Future<void> holds = weft::rpc_async(there, hold);
  latch.wait_for_one();
  // The executor notices that it stands still 10 ms after a task began to wait.
  Future<int64_t> refused = weft::rpc_async(there, same, 1);
  while (!refused.wait_for(5ms)) refused = weft::rpc_async(there, same, 1);
  latch.release();
  return {of(refused)};
}

Statuses late_when_it_was_made() {
  WorkerWorld world(2);
  return {of(weft::rpc_async(world[0].to("worker1", {.timeout = -1s}), same, 1))};
}

Statuses late_without_credit() {
  WorkerWorld world(2, one_credit);
  lose_calls_of(0, world);
  const Future<int64_t> sent = weft::rpc_async(world[0].to("worker1"), same, 1);
  return {of(weft::rpc_async(world[0].to("worker1", {.timeout = 20ms}), same, 2))};
}

Statuses late_after_it_was_sent() {
  latch.close();
  WorkerWorld world(2);
  const absl::Status late = of(weft::rpc_async(world[0].to("worker1", {.timeout = 20ms}), hold));
  latch.release();
  return {late};
}

Statuses late_before_it_began() {
  latch.close();
  RawPeer peer(one_thread);
  peer.call(1, weft::Function<void()>("errors_test::hold").key());
  latch.wait_for_one();
  peer.call(2, weft::Function<void()>("errors_test::hold").key(), 1);
  latch.release();
  return {peer.reply_to(2)};
}

Statuses cancelled_before_it_was_sent_or_began() {
  Statuses statuses;
  {
    pair_made = Promise<Pair>(nullptr);
    WorkerWorld world(2, one_credit);
    lose_calls_of(1, world);
    Future<int64_t> outer = weft::rpc_async(world[0].to("worker1"), call_back_twice);
    const Pair pair = pair_made.future().wait();
    outer.cancel();
    EXPECT_EQ(weft::ran_of(of(pair.first)), Ran::kMaybe);
    statuses.push_back(of(pair.second));
  }
  latch.close();
  RawPeer peer(one_thread);
  peer.call(1, weft::Function<void()>("errors_test::hold").key());
  latch.wait_for_one();
  peer.call(2, weft::Function<void()>("errors_test::hold").key());
  peer.cancel(2);
  // This call is answered without a thread, so the cancel before it has arrived.
  peer.call(3, elsewhere.key());
  EXPECT_EQ(peer.reply_to(3).code(), absl::StatusCode::kUnimplemented);
  latch.release();
  statuses.push_back(peer.reply_to(2));
  return statuses;
}

Statuses cancelled_while_it_may_run() {
  latch.close();
  WorkerWorld world(2);
  Future<void> running = weft::rpc_async(world[0].to("worker1"), hold);
  latch.wait_for_one();
  running.cancel();
  latch.release();
  return {of(running)};
}

Statuses nobody_was_chosen() {
  WorkerWorld world(2);
  return {of(weft::rpc_async("worker1", same, 1))};
}

Statuses reentrant() {
  return call({[] {
    const RRef<Turnstile> turnstile = weft::remote<Turnstile>("worker1");
    const absl::Status outer =
        thrown_by([&] { return turnstile.rpc_sync(&Turnstile::again, turnstile); });
    // The inner call did not run. The outer one ran and threw the inner one's error.
    EXPECT_EQ(weft::ran_of(outer), Ran::kYes);
    return weft::with_ran(outer, Ran::kNo);
  }});
}

Statuses reference_is_lost() {
  WorkerWorld world(2);
  weft::WorkerScope scope(world[0]);
  const RRef<int64_t> value = weft::remote("worker1", same, 1);
  value.creation().wait();
  world.kill(1);
  // Until this worker's references have heard of the death, calls fail as to any dead worker.
  absl::Status status;
  const auto patience = std::chrono::steady_clock::now() + 20s;
  while (!weft::rref_internal::is_rref_lost(status) &&
         std::chrono::steady_clock::now() < patience) {
    status = thrown_by([&] { return value.to_here(); });
    if (status.ok()) continue;  // it was not dead yet
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  }
  EXPECT_TRUE(weft::rref_internal::is_rref_lost(status)) << status;
  return {status};
}

Statuses used_after_shutdown() {
  Statuses statuses;
  std::optional<RRef<int64_t>> value;
  {
    WorkerWorld world(1);
    value = weft::remote("worker0", same, 1);
    value->creation().wait();
    weft::dist_autograd::Context context;
    world.shutdown_all();
    statuses.push_back(thrown_by([&] { return value->to_here(); }));
    statuses.push_back(thrown_by([&] {
      context.backward({at::ones({}, at::dtype(at::kFloat)).requires_grad_().mul(2)});
      return 0;
    }));
  }
  statuses.push_back(thrown_by([&] { return value->to_here(); }));
  return statuses;
}

const std::map<std::string, Situation>& situations() {
  static const std::map<std::string, Situation> all{
      {"the function threw `RpcError` (a nested call failed, say)",
       {.run = [] { return call({[] { return of(weft::rpc_async("worker1", throws, 0)); }}); },
        .code = absl::StatusCode::kOutOfRange}},
      {"the function threw anything else",
       {.run =
            [] {
              const Statuses statuses =
                  call({[] { return of(weft::rpc_async("worker1", throws, 1)); },
                        [] { return of(weft::rpc_async("worker1", throws, 2)); },
                        [] { return of(weft::rpc_async("worker1", throws, 3)); }});
              EXPECT_EQ(statuses[0].message(), "exception of type int");
              EXPECT_EQ(statuses[1].message(), "std::runtime_error: went wrong");
              EXPECT_EQ(statuses[2].message(), "exception of type errors_test::Thing");
              return statuses;
            }}},
      {"the function returned a failed `Status` or `StatusOr`",
       {.run =
            [] {
              return call({[] { return of(weft::rpc_async("worker1", bad_status)); },
                           [] { return of(weft::rpc_async("worker1", bad_value)); }});
            },
        .code = absl::StatusCode::kDataLoss}},
      {"the function's promise was dropped",
       {.run = [] { return call({[] { return of(weft::rpc_async("worker1", forgotten)); }}); }}},
      {"the function returned a future without a promise",
       {.run = [] { return call({[] { return of(weft::rpc_async("worker1", no_future)); }}); }}},
      {"no worker of that name",
       {.run = [] { return call({[] { return of(weft::rpc_async("nobody", same, 1)); }}); },
        .names = "'nobody'"}},
      {"the function is not registered in the caller's program",
       {.run =
            [] { return call({[] { return of(weft::rpc_async("worker1", unregistered, 1)); }}); },
        .names = ")', is not registered in this program; add WEFT_REGISTER_FUNCTION"}},
      {"the callee does not know the function, or with another signature",
       {.run =
            [] {
              return call(
                  {[] { return of(weft::rpc_async("worker1", elsewhere, 1)); },
                   [] { return of(weft::rpc_async("worker1", same_of_tensor, at::ones(1))); }});
            }}},
      {"an argument cannot be sent (device, layout, dtype), or does not decode",
       {.run =
            [] {
              return call({[] { return of(weft::rpc_async("worker1", count, nowhere())); },
                           [] { return of(weft::rpc_async("worker1", unpack, Picky{13})); }});
            }}},
      {"the result cannot be sent",
       {.run = [] { return call({[] { return of(weft::rpc_async("worker1", nowhere)); }}); }}},
      {"the caller's role may not call the function",
       {.run = [] { return call({[] { return of(weft::rpc_async("worker1", reserved)); }}); }}},
      {"the callee does not allow an operator",
       {.run =
            [] {
              return call({[] {
                return of(weft::rpc_async("worker1", weft::aten("aten::cat"), at::ones(1)));
              }});
            }}},
      {"an operator's arguments do not fit its schema",
       {.run =
            [] {
              return call({[] { return of(weft::rpc_async("worker1", negate, 1)); },
                           [] { return of(weft::rpc_async("worker1", negate)); }});
            }}},
      {"the result does not decode at the caller, or an operator gives another type",
       {.run =
            [] {
              return call({[] { return of(weft::rpc_async("worker1", pack, 13)); },
                           [] {
                             return of(weft::rpc_async("worker1", weft::aten<bool>("aten::neg"),
                                                       at::ones(1)));
                           }});
            }}},
      {"several workers live in the process and none was chosen",
       {.run = nobody_was_chosen, .names = "WorkerScope"}},
      {"the connection ended, with more results under way than are kept (64 MiB)",
       {.run = result_is_lost}},
      {"the arguments are larger than a message may be (4 GiB)",
       {.run = [] { return call({[] { return of(weft::rpc_async("worker1", count, huge())); }}); },
        .names = "4294967304 bytes"}},
      {"the result is larger than a message may be (4 GiB)",
       {.run = [] { return call({[] { return of(weft::rpc_async("worker1", huge)); }}); },
        .names = "4294967304 bytes"}},
      {"the local queue to the worker is full (`rpc_async`; `rpc_sync` and `to_here` wait)",
       {.run = local_queue_is_full}},
      {"the callee has no thread left for the call (depth is named)", {.run = no_thread_is_left}},
      {"the deadline had passed when the call was made: it is not sent",
       {.run = late_when_it_was_made}},
      {"the deadline passed while the call waited for credit", {.run = late_without_credit}},
      {"the deadline passed after the call was sent", {.run = late_after_it_was_sent}},
      {"the callee saw the deadline pass before it began", {.run = late_before_it_began}},
      {"cancelled before it was sent, or before it began",
       {.run = cancelled_before_it_was_sent_or_began, .names = "cancelled"}},
      {"cancelled while it may have been running",
       {.run = cancelled_while_it_may_run, .names = "cancelled"}},
      {"the worker died, the call was not sent", {.run = [] { return around(kMadeAfter, die); }}},
      {"the worker died, the call was sent", {.run = [] { return around(kSentBefore, die); }}},
      {"the worker has left the group, the call was not sent",
       {.run = [] { return around(kMadeAfter, leave); }}},
      {"the worker has left the group, the call was sent",
       {.run = [] { return around(kSentBefore, leave); }}},
      {"the others hold this worker for dead, the call was not sent",
       {.run = [] { return around(kMadeAfter, be_fenced); }, .names = "was declared dead"}},
      {"the others hold this worker for dead, the call was sent",
       {.run = [] { return around(kSentBefore, be_fenced); }, .names = "was declared dead"}},
      {"this worker has shut down, the call was not sent",
       {.run = [] { return around(kMadeAfter, end_here); }}},
      {"this worker has shut down, the call was sent",
       {.run = [] { return around(kSentBefore, end_here); }}},
      {"a method of a serial object calls back into the same object", {.run = reentrant}},
      {"an RRef's owner died", {.run = reference_is_lost, .names = "rref(w0.1,1)"}},
      {"an RRef or Context is used after its worker's shutdown",
       {.run = used_after_shutdown, .names = "shut down"}},
  };
  return all;
}

}  // namespace errors_test
