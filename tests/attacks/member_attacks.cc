// Attacks a group from inside: by a member that has a certificate of its own, and by processes with
// bad certificates of the same site. tools/attack.sh runs it on several hosts, and
// member_attacks_test.cc on one.
//
//   member_attacks prepare FOLDER   writes the certificates of all, for the run id "attacks"
//   member_attacks target           is attacked, until the guest ends it
//   member_attacks friend           has rights and references that the guest lacks
//   member_attacks guest FOLDER     attacks, and prints a line for each attack
//   member_attacks late             joins, calls the target, and prints how long joining took
//
// The group is dynamic. All but `prepare` need the launcher's variables and those of a certificate.
// Exit code 0: every attack failed, and nobody was harmed.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"
#include "weft/rpc/class.h"
#include "weft/rpc/codec/type_info.h"
#include "weft/rpc/codec/wire_name.h"
#include "weft/rpc/function.h"
#include "weft/rpc/rendezvous/death_records.h"
#include "weft/rpc/rendezvous/join_records.h"
#include "weft/rpc/runtime.h"
#include "weft/rpc/transport/grpc_transport.h"
#include "weft/rpc/verbs.h"
#include "weft/rref/internal/rref_wire.h"
#include "weft/rref/rref.h"
#include "weft/security/certificate_name.h"
#include "weft/security/security_mode.h"
#include "weft/security/tls_identity.h"
#include "weft/store/job/job_store.h"
#include "weft/tests/security/certificate_maker.h"
#include "weft/worker/run_main.h"
#include "weft/worker/worker.h"

namespace attacks {

using Clock = std::chrono::steady_clock;
using weft::PeerIdentity;
using weft::Ran;
using weft::Worker;
using weft::WorkerId;
using weft::WorkerInfo;
using weft::WorkerOptions;
constexpr const char* kRun = "attacks";
constexpr const char* kSite = "site.example";
constexpr auto kPatience = std::chrono::seconds(60);

// ---- what the target and the friend serve

std::atomic<int> guarded_runs{0};
std::promise<void> done;

int for_friends() { return ++guarded_runs; }
WEFT_REGISTER_FUNCTION(for_friends, weft::Access{"friend"});
int for_itself() { return ++guarded_runs; }
WEFT_REGISTER_FUNCTION(for_itself, weft::local_only);
int secret() { return 42; }
WEFT_REGISTER_FUNCTION(secret);
int how_often() { return guarded_runs; }
WEFT_REGISTER_FUNCTION(how_often);
void finish() { done.set_value(); }
WEFT_REGISTER_FUNCTION(finish);

// ---- what the guest prints

int failed = 0;
void report(const std::string& what, bool held, const std::string& detail) {
  failed += held ? 0 : 1;
  std::cout << what << "\t" << (held ? "held" : "FAILED") << "\t" << detail << std::endl;
}
// It must be refused with one of these codes. Another error says nothing about the attack.
void report_refused(const std::string& what, const absl::Status& status,
                    const std::vector<absl::StatusCode>& codes = {
                        absl::StatusCode::kPermissionDenied}) {
  const bool held = std::find(codes.begin(), codes.end(), status.code()) != codes.end();
  report(what, held, status.ok() ? "it was possible" : status.ToString());
}
// The call must be refused, and must not have run.
void report_denied(const std::string& what, const std::function<void()>& call) {
  try {
    call();
    report(what, false, "it ran");
  } catch (const weft::RpcError& error) {
    report(what,
           error.code() == absl::StatusCode::kPermissionDenied &&
               weft::ran_of(error.status()) == Ran::kNo,
           std::string(error.status().message()));
  }
}

// ---- attacks by calls

void call_without_right(const Worker& worker) {
  report_denied("a function for other roles",
                [&] { weft::rpc_sync(worker.to("target"), for_friends); });
  report_denied("a function for its own worker",
                [&] { weft::rpc_sync(worker.to("target"), for_itself); });
}

// The friend's first RRef has number 1, and so its id is no secret.
void guess_references(const Worker& worker, WorkerId target, WorkerId owner_of_ids) {
  constexpr int kGuesses = 1000;
  const weft::TypeInfo& type = weft::type_info_of<int>();
  std::mt19937_64 random(std::random_device{}());
  const weft::FunctionEntry* fetch =
      worker.runtime()->registry().find(weft::hash64("weft.to_here"));
  int answered = 0;
  absl::Status status;
  for (int i = 0; i < kGuesses; ++i) {
    weft::RpcRuntime::CallRequest request;
    request.to = target;
    request.function = fetch->key();
    request.target = encode(weft::rref_internal::Target{
        {owner_of_ids, 1}, {type.hash, type.name}, i == 0 ? 0 : random()});
    std::promise<absl::Status> reply;
    worker.runtime()->call(std::move(request), [&](absl::StatusOr<weft::Reader> answer) {
      reply.set_value(answer.status());
    });
    status = reply.get_future().get();
    answered += status.code() != absl::StatusCode::kPermissionDenied;
  }
  report(absl::StrCat("keys of an RRef, ", kGuesses, " guesses"), answered == 0,
         std::string(status.message()));
}

// ---- attacks on the store

void change_keys(weft::RendezvousStore& store, const WorkerOptions& options, WorkerId target,
                 WorkerId friends_id) {
  const weft::rpc_internal::JoinKeys keys(options.place.run_id, options.place.group_epoch);
  const std::string member = keys.member(friends_id.index);
  const auto before = store.try_get(member);
  if (!before.ok() || !before->has_value()) return report(member, false, "is not there");
  report_refused("store: another's member record, set", store.set(member, "1 0 friend 10.9.9.9:1"));
  const auto exchanged = store.compare_set(member, **before, "1 0 friend 10.9.9.9:1");
  report_refused("store: another's member record, exchanged", exchanged.status());
  report_refused("store: adding to a text", store.add(member, 1).status(),
                 {absl::StatusCode::kInvalidArgument});
  report_refused("store: another's number, set",
                 store.set(keys.incarnation(friends_id.index), "9"));
  const auto after = store.try_get(member);
  report("store: the record is as it was", after.ok() && *after == *before, member);

  // Of a worker that was never there, and in the target's name. Members may write such records, but
  // their readers are told who did.
  auto shared = std::shared_ptr<weft::RendezvousStore>(&store, [](auto*) {});
  weft::DeathRecords mine(shared, options.place.run_id, options.place.group_epoch);
  const auto declared = mine.declare_dead(target, {900, 1}, "it does not answer");
  if (!declared.ok()) return report("store: a death record", false, declared.status().ToString());
  weft::DeathRecords read(shared, options.place.run_id, options.place.group_epoch);
  const auto records = read.read();
  const std::string text = records.ok() && !records->empty() ? records->back().reason : "";
  report("store: a death record in another's name",
         text.find("written by worker 'guest'") != text.npos, text);
}

// ---- attacks by hellos

class Sink final : public weft::TransportSink {
 public:
  absl::Status on_accept(const PeerIdentity&) override { return absl::OkStatus(); }
  void on_open(const weft::ConnectionPtr&) override {}
  void on_frames(const weft::ConnectionPtr&, std::vector<weft::Frame>) override {}
  void on_closed(const weft::ConnectionPtr&, absl::Status) override { closed_.set_value(); }
  bool wait_for_closed() {
    return closed_.get_future().wait_for(kPatience) == std::future_status::ready;
  }

 private:
  std::promise<void> closed_;
};

// A process that has this certificate and claims to be `self`.
class Dialler {
 public:
  Dialler(PeerIdentity self, std::shared_ptr<weft::TlsIdentity> tls) {
    weft::GrpcTransportOptions options;
    options.tls = std::move(tls);
    transport_ = std::make_unique<weft::GrpcTransport>(clock_, options);
    const absl::Status started = transport_->start(std::move(self), &sink_);
    if (!started.ok()) throw weft::RpcError(started);
  }
  ~Dialler() { transport_->stop(); }

  absl::StatusOr<weft::ConnectionPtr> dial(const WorkerInfo& target) {
    std::promise<absl::StatusOr<weft::ConnectionPtr>> answered;
    const std::string address = target.address.substr(0, target.address.find(';'));
    transport_->connect(
        address, {kRun, target.name, target.id}, clock_.now() + kPatience,
        [&](absl::StatusOr<weft::ConnectionPtr> result) { answered.set_value(std::move(result)); });
    return answered.get_future().get();
  }
  Sink& sink() { return sink_; }

 private:
  weft::SystemClock clock_;
  Sink sink_;
  std::unique_ptr<weft::GrpcTransport> transport_;
};

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The certificate `name` of the folder, as one of the worker `claimed`: so this end does not find
// fault with it.
std::shared_ptr<weft::TlsIdentity> certificate(const std::filesystem::path& folder,
                                               const std::string& name,
                                               const std::string& claimed) {
  weft::TlsCredentials made;
  made.chain = read_file(folder / (name + ".pem"));
  made.key = weft::SecretBytes(read_file(folder / (name + ".key")));
  made.authorities = read_file(folder / "ca.pem");
  made.name = {weft::run_digest(kRun), "guest", claimed, kSite};
  return std::make_shared<weft::TlsIdentity>(std::move(made));
}

// The group, as the guest sees it.
struct Group {
  std::filesystem::path folder;  // of the certificates
  std::string name;
  std::string security;  // as its workers say it in their hellos
  WorkerInfo target, the_friend, guest;
};

void pose(const Group& group) {
  struct Claim {
    const char* what;
    const char* why;  // a part of the refusal
    const char* certificate;
    const char* role;
    PeerIdentity self;
  };
  const WorkerId target = group.target.id, the_friend = group.the_friend.id, guest = group.guest.id;
  const WorkerId later{the_friend.index, the_friend.incarnation + 1};
  const WorkerId later_guest{guest.index, guest.incarnation + 1};
  const std::string& name = group.name;
  const PeerIdentity own{name, "guest", guest};
  const std::vector<Claim> claims = {
      {"another's name",
       "the hello names 'friend'",
       "guest",
       "friend",
       {name, "friend", the_friend}},
      {"another's next incarnation",
       "the hello names 'friend'",
       "guest",
       "friend",
       {name, "friend", later}},
      {"its own next incarnation, which has not joined",
       "records do not name it",
       "guest",
       "guest",
       {name, "guest", later_guest}},
      {"another's id with its own name",
       "is not a member",
       "guest",
       "guest",
       {name, "guest", the_friend}},
      {"the target's own id",
       "which is 'target' itself",
       "guest",
       "guest",
       {name, "guest", target}},
      {"another's role", "has role 'guest'", "guest", "friend", own},
      {"another group", "belongs to group", "guest", "guest", {"other/0", "guest", guest}},
      {"expired certificate", "certificate", "expired", "guest", own},
      {"certificate that is not valid yet", "certificate", "future", "guest", own},
      {"certificate with two names", "2 URIs", "two_names", "guest", own},
      {"certificate with a common name only", "0 URIs", "common_name", "guest", own},
      {"certificate of another job", "is not of this job", "other_job", "guest", own},
      {"certificate of another authority", "certificate", "other_authority", "guest", own},
  };
  for (const Claim& claim : claims) {
    PeerIdentity self = claim.self;
    self.security = group.security;
    self.role = claim.role;
    Dialler dialler(self, certificate(group.folder, claim.certificate, self.name));
    // Aborted: the target does not know yet, and asks the store.
    absl::Status status = absl::AbortedError("");
    for (const auto end = Clock::now() + kPatience;
         absl::IsAborted(status) && Clock::now() < end;) {
      status = dialler.dial(group.target).status();
    }
    const bool refused = !status.ok() && !absl::IsAborted(status);
    const bool for_this = status.message().find(claim.why) != std::string_view::npos;
    report(absl::StrCat("hello: ", claim.what), refused && for_this, status.ToString());
  }
}

// A call of the friend, says the frame; but it comes over the guest's connection.
void spoof_source(const Group& group, const Worker& worker) {
  PeerIdentity self{group.name, "guest", group.guest.id};
  self.security = group.security;
  self.role = "guest";
  Dialler dialler(self, certificate(group.folder, "guest", "guest"));
  const auto connection = dialler.dial(group.target);
  if (!connection.ok())
    return report("a frame with another's source", false, connection.status().ToString());
  weft::Frame frame;
  frame.header.kind = weft::FrameKind::kCall;
  frame.header.source = group.the_friend.id;
  frame.header.destination = group.target.id;
  frame.header.sequence = 1000;
  frame.header.call = 1000;
  const weft::FunctionKey function =
      worker.runtime()->registry().find(weft::hash64("attacks::for_friends"))->key();
  frame.header.function = function.id;
  frame.header.fingerprint = function.fingerprint;
  (*connection)->send({std::make_shared<const weft::Frame>(std::move(frame))});
  report("a frame with another's source", dialler.sink().wait_for_closed(),
         "the connection is cut");
}

// ---- the processes

WorkerOptions options_of(const std::string& name) {
  WorkerOptions options = WorkerOptions::from_env();
  options.dynamic = true;
  options.name = name;
  options.place.role_name = name;
  return options;
}

int prepare(const std::filesystem::path& folder) {
  const weft::CertificateMaker site, another;
  const auto uri = [](const std::string& worker, const std::string& run = kRun) {
    return absl::StrCat("spiffe://", kSite, "/weft/", weft::run_digest(run), "/", worker, "/",
                        worker);
  };
  const auto write = [&](const std::string& name, const weft::TlsCredentials& made) {
    std::ofstream(folder / (name + ".pem")) << made.chain;
    std::ofstream(folder / (name + ".key")) << made.key.text();
    std::filesystem::permissions(folder / (name + ".key"), std::filesystem::perms::owner_read);
  };
  std::ofstream(folder / "ca.pem") << site.certificate();
  for (const char* name : {"launcher", "target", "friend", "guest", "late"}) {
    write(name, site.make({.uris = {uri(name)}}));
  }
  write("expired", site.make({.uris = {uri("guest")}, .begins = -7200, .ends = -3600}));
  write("future", site.make({.uris = {uri("guest")}, .begins = 3600, .ends = 7200}));
  write("two_names", site.make({.uris = {uri("guest"), uri("friend")}}));
  write("common_name", site.make({.uris = {}, .common_name = "guest"}));
  write("other_job", site.make({.uris = {uri("guest", "other")}}));
  write("other_authority", another.make({.uris = {uri("guest")}}));
  return 0;
}

int serve(const std::string& name) {
  Worker worker = Worker::join(options_of(name));
  const weft::WorkerScope scope(worker);
  weft::RRef<int> reference;
  if (name == "friend") {
    (void)worker.wait_for("target", kPatience);
    reference = weft::remote("target", secret);
    if (reference.to_here() != 42) return 1;
    weft::rpc_sync("target", for_friends);
  }
  std::cout << name << " is ready" << std::endl;
  done.get_future().wait();
  // The guest has not harmed it.
  if (name == "friend" && reference.to_here() != 42) return 1;
  reference = {};
  worker.shutdown();
  return 0;
}

int attack(const std::filesystem::path& folder) {
  const WorkerOptions options = options_of("guest");
  Worker worker = Worker::join(options);
  const weft::WorkerScope scope(worker);
  const WorkerInfo target = worker.wait_for("target", kPatience);
  const WorkerInfo the_friend = worker.wait_for("friend", kPatience);
  const WorkerInfo guest = worker.wait_for("guest", kPatience);
  // The friend has its reference once it has made its call.
  const auto end = Clock::now() + kPatience;
  while (weft::rpc_sync("target", how_often) == 0 && Clock::now() < end) {
  }

  call_without_right(worker);
  guess_references(worker, target.id, the_friend.id);
  const auto store = weft::open_job_store(options.place, options.security);
  if (!store.ok()) throw weft::RpcError(store.status());
  change_keys(**store, options, target.id, the_friend.id);
  const bool is_auto = options.security == weft::SecurityMode::kAuto;
  const Group group = {.folder = folder,
                       .name = absl::StrCat(kRun, "/", options.place.group_epoch),
                       .security = std::string(is_auto ? "" : weft::to_string(options.security)),
                       .target = target,
                       .the_friend = the_friend,
                       .guest = guest};
  pose(group);
  spoof_source(group, worker);

  report("no handler ran", weft::rpc_sync("target", how_often) == 1, "but the friend's");
  report("the friend lives", weft::rpc_sync("friend", secret) == 42, "it answers");
  weft::rpc_sync("friend", finish);
  worker.wait_until_gone("friend", kPatience);  // throws unless it left in order
  weft::rpc_sync("target", finish);
  worker.shutdown();
  return failed == 0 ? 0 : 1;
}

int join_late() {
  weft::SystemClock clock;
  const auto begun = clock.now();
  Worker worker = Worker::join(options_of("late"));
  const weft::WorkerScope scope(worker);
  const bool right = weft::rpc_sync("target", secret) == 42;
  const std::chrono::duration<double> took = clock.now() - begun;
  std::cout << "joined in " << took.count() << " s" << std::endl;
  worker.shutdown();
  return right ? 0 : 1;
}

int run(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 2 && words[0] == "prepare") return prepare(words[1]);
  if (words.size() == 2 && words[0] == "guest") return attack(words[1]);
  if (words == std::vector<std::string>{"target"}) return serve("target");
  if (words == std::vector<std::string>{"friend"}) return serve("friend");
  if (words == std::vector<std::string>{"late"}) return join_late();
  std::cerr << "member_attacks prepare FOLDER | target | friend | guest FOLDER | late" << std::endl;
  return 2;
}

}  // namespace attacks

int main(int argc, char** argv) { return weft::run_main(argc, argv, attacks::run); }
