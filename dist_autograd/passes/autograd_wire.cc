#include "weft/dist_autograd/passes/autograd_wire.h"

#include <limits>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "weft/base/status.h"

namespace weft::dist_autograd_internal {
namespace {

absl::Status bad(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("autograd message: ", what));
}

// ---- ids

template <class Id>
void put(const Id& id, wire::AutogradId& out) {
  out.set_creator(id.creator.bits());
  out.set_number(id.number);
}

absl::StatusOr<WorkerId> worker(uint64_t bits) {
  const WorkerId id = WorkerId::from_bits(bits);
  if (!id.valid()) return bad("a worker id is missing");
  return id;
}

template <class Id>
absl::StatusOr<Id> get_id(bool present, const wire::AutogradId& in, const char* what) {
  const Id id{WorkerId::from_bits(in.creator()), in.number()};
  if (!present || !id.valid()) return bad(what);
  return id;
}

template <class List>
absl::Status check_length(const List& list) {
  if (list.size() > kMaxWireList) return bad("a list is too long");
  return absl::OkStatus();
}

template <class List>
absl::Status check_ascending_below(const List& list, uint64_t limit, const char* what) {
  WEFT_RETURN_IF_ERROR(check_length(list));
  for (int i = 0; i < list.size(); ++i) {
    if (list[i] >= limit || (i > 0 && list[i] <= list[i - 1])) return bad(what);
  }
  return absl::OkStatus();
}

template <class List>
absl::StatusOr<std::vector<SendId>> get_sends(const List& list) {
  WEFT_RETURN_IF_ERROR(check_length(list));
  std::vector<SendId> sends;
  sends.reserve(list.size());
  for (const wire::AutogradId& id : list) {
    WEFT_ASSIGN_OR_RETURN(SendId send, get_id<SendId>(true, id, "a send id is missing"));
    sends.push_back(send);
  }
  return sends;
}

void put(const PassId& pass, wire::PassId& out) {
  put(pass.context, *out.mutable_context());
  out.set_initiator(pass.initiator.bits());
  out.set_k(pass.k);
}

absl::StatusOr<PassId> get(bool present, const wire::PassId& in) {
  WEFT_ASSIGN_OR_RETURN(ContextId context, get_id<ContextId>(present && in.has_context(),
                                                             in.context(), "no context id"));
  WEFT_ASSIGN_OR_RETURN(WorkerId initiator, worker(in.initiator()));
  if (in.k() == 0) return bad("pass number 0");
  return PassId{context, initiator, in.k()};
}

absl::Status check_number(uint64_t number) {
  return number == 0 ? bad("a counted message without a number") : absl::OkStatus();
}

// ---- histories

template <class List>
void put(const std::vector<PassHistory>& histories, List* out) {
  for (const PassHistory& history : histories) {
    wire::PassHistory& one = *out->Add();
    one.set_initiator(history.initiator.bits());
    one.set_decided(history.decided);
    one.set_complete_from(history.complete_from);
    one.mutable_aborted()->Add(history.aborted.begin(), history.aborted.end());
  }
}

template <class List>
absl::StatusOr<std::vector<PassHistory>> get_histories(const List& list) {
  WEFT_RETURN_IF_ERROR(check_length(list));
  std::vector<PassHistory> histories;
  histories.reserve(list.size());
  for (const wire::PassHistory& in : list) {
    WEFT_ASSIGN_OR_RETURN(WorkerId initiator, worker(in.initiator()));
    if (in.decided() == 0 || in.decided() == std::numeric_limits<uint64_t>::max() ||
        in.complete_from() == 0 || in.complete_from() > in.decided() + 1) {
      return bad("a history of no passes");
    }
    WEFT_RETURN_IF_ERROR(
        check_ascending_below(in.aborted(), in.decided() + 1, "a history's aborted passes"));
    if (in.aborted_size() > 0 && in.aborted(0) < in.complete_from()) {
      return bad("a history's aborted passes");
    }
    histories.push_back(
        {initiator, in.decided(), in.complete_from(), {in.aborted().begin(), in.aborted().end()}});
  }
  return histories;
}

// ---- header

void put(const PassHeader& header, wire::PassHeader& out) {
  put(header.pass, *out.mutable_pass());
  out.set_mode(static_cast<wire::BackwardMode>(header.mode));
  out.set_retain_graph(header.retain_graph);
  if (header.budget != absl::InfiniteDuration()) {
    // At least 1: on the wire, 0 means "no limit".
    out.set_budget_us(std::max<int64_t>(1, absl::ToInt64Microseconds(header.budget)));
  }
  put(header.histories, out.mutable_histories());
}

absl::StatusOr<PassHeader> get(bool present, const wire::PassHeader& in) {
  PassHeader header;
  WEFT_ASSIGN_OR_RETURN(header.pass, get(present && in.has_pass(), in.pass()));
  switch (in.mode()) {
    case wire::BACKWARD_MODE_DEFAULT:
      header.mode = BackwardMode::kDefault;
      break;
    case wire::BACKWARD_MODE_ALL_SENDS:
      header.mode = BackwardMode::kAllSends;
      break;
    case wire::BACKWARD_MODE_EAGER:
      header.mode = BackwardMode::kEager;
      break;
    default:
      return bad("unknown backward mode");
  }
  header.retain_graph = in.retain_graph();
  if (in.budget_us() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return bad("the budget is too large");
  }
  if (in.budget_us() != 0) {
    header.budget = absl::Microseconds(static_cast<int64_t>(in.budget_us()));
  }
  WEFT_ASSIGN_OR_RETURN(header.histories, get_histories(in.histories()));
  return header;
}

// ---- reports

template <class List>
void put(const std::vector<PeerCount>& counts, List* out) {
  for (const PeerCount& count : counts) {
    auto& one = *out->Add();
    one.set_worker(count.worker.bits());
    one.set_count(count.count);
  }
}

template <class List>
absl::StatusOr<std::vector<PeerCount>> get_counts(const List& list) {
  WEFT_RETURN_IF_ERROR(check_length(list));
  std::vector<PeerCount> counts;
  counts.reserve(list.size());
  for (const auto& in : list) {
    WEFT_ASSIGN_OR_RETURN(WorkerId id, worker(in.worker()));
    if (in.count() == 0 || (!counts.empty() && !(counts.back().worker < id))) {
      return bad("the counters of a report");
    }
    counts.push_back({id, in.count()});
  }
  return counts;
}

template <class List>
void put(const std::vector<PassReport>& reports, List* out) {
  for (const PassReport& report : reports) {
    wire::PassReport& one = *out->Add();
    one.set_worker(report.counts.worker.bits());
    one.set_version(report.counts.version);
    put(report.counts.sent, one.mutable_sent());
    put(report.counts.received, one.mutable_received());
    one.set_waiting(report.waiting);
    for (const SendId& send : report.unfed) put(send, *one.add_unfed());
  }
}

template <class List>
absl::StatusOr<std::vector<PassReport>> get_reports(const List& list) {
  WEFT_RETURN_IF_ERROR(check_length(list));
  std::vector<PassReport> reports;
  reports.reserve(list.size());
  for (const wire::PassReport& in : list) {
    PassReport report{.waiting = in.waiting()};
    WEFT_ASSIGN_OR_RETURN(report.counts.worker, worker(in.worker()));
    if (in.version() == 0) return bad("a report without a version");
    report.counts.version = in.version();
    WEFT_ASSIGN_OR_RETURN(report.counts.sent, get_counts(in.sent()));
    WEFT_ASSIGN_OR_RETURN(report.counts.received, get_counts(in.received()));
    WEFT_ASSIGN_OR_RETURN(report.unfed, get_sends(in.unfed()));
    reports.push_back(std::move(report));
  }
  return reports;
}

// ---- failures

void put(const PassFailure& failure, wire::PassFailure& out) {
  wire::Status& status = *out.mutable_status();
  status.set_code(static_cast<int>(failure.status.code()));
  status.set_message(std::string(failure.status.message()));
  status.set_ran(static_cast<uint32_t>(ran_of(failure.status)));
  status.set_worker(worker_of(failure.status));
  status.set_trail(trail_of(failure.status));
  out.set_worker(failure.worker.bits());
  out.set_died(failure.died.bits());
  out.set_node(failure.node);
  if (failure.call.valid()) put(failure.call, *out.mutable_call());
}

absl::StatusOr<PassFailure> get(bool present, const wire::PassFailure& in) {
  const wire::Status& status = in.status();
  if (!present || status.code() <= 0 || status.code() > 16)
    return bad("a failure without a status");
  if (status.ran() > 2) return bad("a status that says neither whether it ran nor maybe");
  PassFailure failure;
  failure.status =
      with_ran(absl::Status(static_cast<absl::StatusCode>(status.code()), status.message()),
               static_cast<Ran>(status.ran()));
  if (!status.worker().empty()) failure.status = raised_at(failure.status, status.worker());
  if (!status.trail().empty()) failure.status = add_hop(failure.status, status.trail());
  WEFT_ASSIGN_OR_RETURN(failure.worker, worker(in.worker()));
  if (in.died() != 0) {
    WEFT_ASSIGN_OR_RETURN(failure.died, worker(in.died()));
  }
  failure.node = in.node();
  if (in.has_call()) {
    WEFT_ASSIGN_OR_RETURN(failure.call, get_id<SendId>(true, in.call(), "a send id is missing"));
  }
  return failure;
}

// ---- the messages

struct Writer {
  wire::AutogradPost& out;

  void operator()(const GradMessage& m) const {
    wire::AutogradPost::Grad& grad = *out.mutable_grad();
    put(m.header, *grad.mutable_header());
    grad.set_number(m.number);
    for (const GradEntry& entry : m.entries) {
      wire::AutogradPost::GradEntry& one = *grad.add_entries();
      put(entry.send, *one.mutable_send());
      one.set_slots(entry.slots);
      one.mutable_present()->Add(entry.present.begin(), entry.present.end());
    }
    put(m.reports, grad.mutable_reports());
  }
  void operator()(const ActivateMessage& m) const {
    wire::AutogradPost::Activate& activate = *out.mutable_activate();
    put(m.header, *activate.mutable_header());
    activate.set_number(m.number);
    for (const SendId& send : m.sends) put(send, *activate.add_sends());
    put(m.reports, activate.mutable_reports());
  }
  void operator()(const SealMessage& m) const {
    put(m.pass, *out.mutable_seal()->mutable_pass());
    out.mutable_seal()->set_number(m.number);
  }
  void operator()(const ReportMessage& m) const {
    put(m.pass, *out.mutable_report()->mutable_pass());
    put(m.reports, out.mutable_report()->mutable_reports());
  }
  void operator()(const PublishMessage& m) const {
    put(m.pass, *out.mutable_publish()->mutable_pass());
    put(m.histories, out.mutable_publish()->mutable_histories());
  }
  void operator()(const FailMessage& m) const {
    put(m.pass, *out.mutable_fail()->mutable_pass());
    put(m.failure, *out.mutable_fail()->mutable_failure());
  }
  void operator()(const AbortMessage& m) const {
    put(m.pass, *out.mutable_abort()->mutable_pass());
    put(m.failure, *out.mutable_abort()->mutable_failure());
  }
  void operator()(const ReleaseContextMessage& m) const {
    put(m.context, *out.mutable_release()->mutable_context());
    out.mutable_release()->set_watermark(m.watermark);
  }
  void operator()(const HoldsContextMessage& m) const {
    put(m.context, *out.mutable_holds()->mutable_context());
  }
};

absl::StatusOr<AutogradMessage> read(const wire::AutogradPost::Grad& in) {
  GradMessage message{.number = in.number()};
  WEFT_ASSIGN_OR_RETURN(message.header, get(in.has_header(), in.header()));
  WEFT_RETURN_IF_ERROR(check_number(in.number()));
  WEFT_RETURN_IF_ERROR(check_length(in.entries()));
  message.entries.reserve(in.entries_size());
  for (const wire::AutogradPost::GradEntry& one : in.entries()) {
    GradEntry entry;
    WEFT_ASSIGN_OR_RETURN(entry.send,
                          get_id<SendId>(one.has_send(), one.send(), "a send id is missing"));
    if (one.slots() == 0 || one.slots() > kMaxWireList) return bad("the slots of a send");
    entry.slots = one.slots();
    WEFT_RETURN_IF_ERROR(
        check_ascending_below(one.present(), one.slots(), "the gradients present"));
    entry.present.assign(one.present().begin(), one.present().end());
    message.entries.push_back(std::move(entry));
  }
  WEFT_ASSIGN_OR_RETURN(message.reports, get_reports(in.reports()));
  return message;
}

absl::StatusOr<AutogradMessage> read(const wire::AutogradPost::Activate& in) {
  ActivateMessage message{.number = in.number()};
  WEFT_ASSIGN_OR_RETURN(message.header, get(in.has_header(), in.header()));
  WEFT_RETURN_IF_ERROR(check_number(in.number()));
  WEFT_ASSIGN_OR_RETURN(message.sends, get_sends(in.sends()));
  WEFT_ASSIGN_OR_RETURN(message.reports, get_reports(in.reports()));
  return message;
}

absl::StatusOr<AutogradMessage> read(const wire::AutogradPost::Seal& in) {
  WEFT_ASSIGN_OR_RETURN(PassId pass, get(in.has_pass(), in.pass()));
  WEFT_RETURN_IF_ERROR(check_number(in.number()));
  return SealMessage{pass, in.number()};
}

absl::StatusOr<AutogradMessage> read(const wire::AutogradPost::Report& in) {
  ReportMessage message;
  WEFT_ASSIGN_OR_RETURN(message.pass, get(in.has_pass(), in.pass()));
  WEFT_ASSIGN_OR_RETURN(message.reports, get_reports(in.reports()));
  return message;
}

absl::StatusOr<AutogradMessage> read(const wire::AutogradPost::Publish& in) {
  PublishMessage message;
  WEFT_ASSIGN_OR_RETURN(message.pass, get(in.has_pass(), in.pass()));
  WEFT_ASSIGN_OR_RETURN(message.histories, get_histories(in.histories()));
  return message;
}

template <class Message, class Wire>
absl::StatusOr<AutogradMessage> read_failure(const Wire& in) {
  Message message;
  WEFT_ASSIGN_OR_RETURN(message.pass, get(in.has_pass(), in.pass()));
  WEFT_ASSIGN_OR_RETURN(message.failure, get(in.has_failure(), in.failure()));
  return message;
}

template <class Wire>
absl::StatusOr<ContextId> read_context(const Wire& in) {
  return get_id<ContextId>(in.has_context(), in.context(), "no context id");
}

}  // namespace

void to_wire(const AutogradMetadata& metadata, wire::AutogradMetadata& out) {
  put(metadata.context, *out.mutable_context());
  if (metadata.send.valid()) put(metadata.send, *out.mutable_send());
  out.mutable_requires_grad()->Add(metadata.requires_grad.begin(), metadata.requires_grad.end());
  put(metadata.histories, out.mutable_histories());
}

absl::StatusOr<AutogradMetadata> from_wire(const wire::AutogradMetadata& in,
                                           uint32_t tensor_count) {
  AutogradMetadata metadata;
  WEFT_ASSIGN_OR_RETURN(metadata.context, read_context(in));
  if (in.has_send()) {
    WEFT_ASSIGN_OR_RETURN(metadata.send, get_id<SendId>(true, in.send(), "a send id is missing"));
  }
  if (in.has_send() != (in.requires_grad_size() > 0)) {
    return bad("a send id goes with tensors that require grad");
  }
  WEFT_RETURN_IF_ERROR(
      check_ascending_below(in.requires_grad(), tensor_count, "the tensors that require grad"));
  metadata.requires_grad.assign(in.requires_grad().begin(), in.requires_grad().end());
  WEFT_ASSIGN_OR_RETURN(metadata.histories, get_histories(in.histories()));
  return metadata;
}

void to_wire(const AutogradMessage& message, wire::AutogradPost& out) {
  std::visit(Writer{out}, message);
}

absl::StatusOr<AutogradMessage> from_wire(const wire::AutogradPost& in) {
  switch (in.kind_case()) {
    case wire::AutogradPost::kGrad:
      return read(in.grad());
    case wire::AutogradPost::kActivate:
      return read(in.activate());
    case wire::AutogradPost::kSeal:
      return read(in.seal());
    case wire::AutogradPost::kReport:
      return read(in.report());
    case wire::AutogradPost::kPublish:
      return read(in.publish());
    case wire::AutogradPost::kFail:
      return read_failure<FailMessage>(in.fail());
    case wire::AutogradPost::kAbort:
      return read_failure<AbortMessage>(in.abort());
    case wire::AutogradPost::kRelease: {
      WEFT_ASSIGN_OR_RETURN(ContextId context, read_context(in.release()));
      return ReleaseContextMessage{context, in.release().watermark()};
    }
    case wire::AutogradPost::kHolds: {
      WEFT_ASSIGN_OR_RETURN(ContextId context, read_context(in.holds()));
      return HoldsContextMessage{context};
    }
    case wire::AutogradPost::KIND_NOT_SET:
      break;
  }
  return bad("of no known kind");
}

absl::StatusOr<std::vector<AutogradMessage>> piggybacked_from_wire(const wire::AutogradPost& in) {
  std::vector<AutogradMessage> piggybacked;
  WEFT_RETURN_IF_ERROR(check_length(in.piggybacked()));
  for (const wire::AutogradPost& one : in.piggybacked()) {
    WEFT_ASSIGN_OR_RETURN(AutogradMessage message, from_wire(one));
    if (!may_piggyback(message) || one.piggybacked_size() > 0) {
      return bad("of a kind that cannot be piggybacked");
    }
    piggybacked.push_back(std::move(message));
  }
  return piggybacked;
}

size_t tensors_expected(const AutogradMessage& message) {
  size_t count = 0;
  if (const auto* grad = std::get_if<GradMessage>(&message)) {
    for (const GradEntry& entry : grad->entries) count += entry.present.size();
  }
  return count;
}

}  // namespace weft::dist_autograd_internal
