#include "weft/rref/internal/rref_wire.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/proto/rref.pb.h"
#include "weft/rpc/transport/status_wire.h"

namespace weft::rref_internal {
namespace {

constexpr size_t kMaxTypeName = 1024;
constexpr size_t kMaxBytes = 4096;  // of any message here; enough for ids with a name or an error
constexpr size_t kMaxErrorText = 2048;
constexpr size_t kMaxTrail = 1024;

absl::Status bad(const char* where, const char* field, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat(where, ".", field, ": ", why));
}

template <class Id>
void put(const Id& id, wire::RRefScopedId* out) {
  out->set_creator(id.creator.bits());
  out->set_number(id.number);
}

void put(const TypeTag& type, wire::RRefType* out) {
  out->set_hash(type.hash);
  out->set_name(type.name);
}

// Cuts the texts so that the message stays within kMaxBytes.
void put(const absl::Status& error, wire::Status* out) {
  rpc_internal::encode_status(error, *out);
  out->mutable_message()->resize(std::min(out->message().size(), kMaxErrorText));
  out->mutable_trail()->resize(std::min(out->trail().size(), kMaxTrail));
}

template <class Id>
absl::Status get(const char* where, const char* field, const wire::RRefScopedId& in, Id& id) {
  id = Id{WorkerId::from_bits(in.creator()), in.number()};
  if (!id.creator.valid()) return bad(where, field, "no creator");
  if (!id.valid()) return bad(where, field, "no number");
  return absl::OkStatus();
}

absl::Status get(const char* where, const wire::RRefType& in, TypeTag& type) {
  if (in.name().empty()) return bad(where, "type", "no name");
  if (in.name().size() > kMaxTypeName) return bad(where, "type", "the name is too long");
  type = {in.hash(), in.name()};
  return absl::OkStatus();
}

absl::Status get(const char* where, const char* field, uint64_t bits, WorkerId& worker) {
  worker = WorkerId::from_bits(bits);
  return worker.valid() ? absl::OkStatus() : bad(where, field, "no worker");
}

// For all messages but SETTLED: each names an RRef and a fork.
template <class Wire, class M>
absl::Status get_ids(const char* where, const Wire& in, M& out) {
  WEFT_RETURN_IF_ERROR(get(where, "rref", in.rref(), out.rref));
  return get(where, "fork", in.fork(), out.fork);
}

template <class M, class Wire>
void put_ids(const M& in, Wire* out) {
  put(in.rref, out->mutable_rref());
  put(in.fork, out->mutable_fork());
}

struct Encoder {
  wire::RRefMessage& out;

  void operator()(const ForkRequest& m) {
    put_ids(m, out.mutable_fork_request());
    out.mutable_fork_request()->set_settled_below(m.settled_below);
    out.mutable_fork_request()->set_key(m.key);
  }
  void operator()(const ForkAccept& m) { put_ids(m, out.mutable_fork_accept()); }
  void operator()(const ForkReject& m) {
    put_ids(m, out.mutable_fork_reject());
    out.mutable_fork_reject()->set_reason(
        static_cast<wire::RRefMessage::ForkReject::Reason>(m.reason));
    if (!m.error.ok()) put(m.error, out.mutable_fork_reject()->mutable_error());
  }
  void operator()(const ChildAccept& m) { put_ids(m, out.mutable_child_accept()); }
  void operator()(const UserDelete& m) {
    put_ids(m, out.mutable_user_delete());
    out.mutable_user_delete()->set_ack_wanted(m.ack_wanted);
    out.mutable_user_delete()->set_settled_below(m.settled_below);
  }
  void operator()(const DeleteAck& m) { put_ids(m, out.mutable_delete_ack()); }
  void operator()(const CancelFork& m) {
    put_ids(m, out.mutable_cancel_fork());
    out.mutable_cancel_fork()->set_owner(m.owner.bits());
    out.mutable_cancel_fork()->set_creation(m.creation);
    out.mutable_cancel_fork()->set_settled_below(m.settled_below);
    if (!m.error.ok()) put(m.error, out.mutable_cancel_fork()->mutable_error());
  }
  void operator()(const CancelAck& m) {
    put_ids(m, out.mutable_cancel_ack());
    out.mutable_cancel_ack()->set_owner(m.owner.bits());
    out.mutable_cancel_ack()->set_registered(m.registered);
  }
  void operator()(const Settled& m) { out.mutable_settled()->set_settled_below(m.settled_below); }
};

template <class M, class Wire>
absl::StatusOr<Message> with_ids(const char* where, const Wire& in) {
  M out;
  WEFT_RETURN_IF_ERROR(get_ids(where, in, out));
  return Message(std::move(out));
}

template <class Wire>
absl::Status parse(const char* where, std::string_view bytes, Wire& out) {
  if (bytes.size() <= kMaxBytes &&
      out.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(where, ": not a well-formed message"));
}

absl::StatusOr<Message> decode_cancel(const wire::RRefMessage::CancelFork& in) {
  CancelFork out;
  WEFT_RETURN_IF_ERROR(get_ids("CancelFork", in, out));
  WEFT_RETURN_IF_ERROR(get("CancelFork", "owner", in.owner(), out.owner));
  out.creation = in.creation();
  out.settled_below = in.settled_below();
  if (out.creation && out.rref.creator != out.fork.creator) {
    return bad("CancelFork", "fork", "a creation's fork and RRef have one creator");
  }
  if (in.has_error()) {
    if (!out.creation) return bad("CancelFork", "error", "only of a creation");
    out.error = rpc_internal::decode_status(in.error());
  }
  return Message(std::move(out));
}

absl::StatusOr<Message> decode_reject(const wire::RRefMessage::ForkReject& in) {
  ForkReject out;
  WEFT_RETURN_IF_ERROR(get_ids("ForkReject", in, out));
  const int reason = in.reason();
  if (reason < static_cast<int>(RejectReason::kFreed) ||
      reason > static_cast<int>(RejectReason::kWrongKey)) {
    return bad("ForkReject", "reason", "unknown");
  }
  out.reason = static_cast<RejectReason>(reason);
  if (in.has_error() != (out.reason == RejectReason::kNotCreated)) {
    return bad("ForkReject", "error", "there exactly if the creation failed");
  }
  if (in.has_error()) out.error = rpc_internal::decode_status(in.error());
  return Message(std::move(out));
}

}  // namespace

std::string encode(const Message& message) {
  wire::RRefMessage out;
  std::visit(Encoder{out}, message);
  return out.SerializeAsString();
}

std::string encode(const Reference& reference) {
  wire::RRefReference out;
  put_ids(reference, &out);
  out.set_owner(reference.owner.bits());
  if (reference.parent.valid()) put(reference.parent, out.mutable_parent());
  put(reference.type, out.mutable_type());
  out.set_key(reference.key);
  return out.SerializeAsString();
}

std::string encode(const Creation& creation) {
  wire::RRefCreation out;
  put_ids(creation, &out);
  put(creation.type, out.mutable_type());
  out.set_key(creation.key);
  return out.SerializeAsString();
}

std::string encode(const Target& target) {
  wire::RRefTarget out;
  put(target.rref, out.mutable_rref());
  put(target.type, out.mutable_type());
  out.set_key(target.key);
  return out.SerializeAsString();
}

absl::StatusOr<Message> decode_message(std::string_view bytes) {
  wire::RRefMessage in;
  WEFT_RETURN_IF_ERROR(parse("RRefMessage", bytes, in));
  switch (in.message_case()) {
    case wire::RRefMessage::kForkRequest: {
      ForkRequest out;
      WEFT_RETURN_IF_ERROR(get_ids("ForkRequest", in.fork_request(), out));
      out.settled_below = in.fork_request().settled_below();
      out.key = in.fork_request().key();
      return Message(out);
    }
    case wire::RRefMessage::kForkAccept:
      return with_ids<ForkAccept>("ForkAccept", in.fork_accept());
    case wire::RRefMessage::kForkReject:
      return decode_reject(in.fork_reject());
    case wire::RRefMessage::kChildAccept:
      return with_ids<ChildAccept>("ChildAccept", in.child_accept());
    case wire::RRefMessage::kUserDelete: {
      UserDelete out;
      WEFT_RETURN_IF_ERROR(get_ids("UserDelete", in.user_delete(), out));
      out.ack_wanted = in.user_delete().ack_wanted();
      out.settled_below = in.user_delete().settled_below();
      return Message(out);
    }
    case wire::RRefMessage::kDeleteAck:
      return with_ids<DeleteAck>("DeleteAck", in.delete_ack());
    case wire::RRefMessage::kCancelFork:
      return decode_cancel(in.cancel_fork());
    case wire::RRefMessage::kCancelAck: {
      CancelAck out;
      WEFT_RETURN_IF_ERROR(get_ids("CancelAck", in.cancel_ack(), out));
      WEFT_RETURN_IF_ERROR(get("CancelAck", "owner", in.cancel_ack().owner(), out.owner));
      out.registered = in.cancel_ack().registered();
      return Message(out);
    }
    case wire::RRefMessage::kSettled:
      return Message(Settled{in.settled().settled_below()});
    case wire::RRefMessage::MESSAGE_NOT_SET:
      break;
  }
  return bad("RRefMessage", "message", "none, or of a later version");
}

absl::StatusOr<Reference> decode_reference(std::string_view bytes) {
  wire::RRefReference in;
  WEFT_RETURN_IF_ERROR(parse("RRefReference", bytes, in));
  Reference out;
  WEFT_RETURN_IF_ERROR(get_ids("RRefReference", in, out));
  WEFT_RETURN_IF_ERROR(get("RRefReference", "owner", in.owner(), out.owner));
  WEFT_RETURN_IF_ERROR(get("RRefReference", in.type(), out.type));
  out.key = in.key();
  if (in.has_parent()) {
    WEFT_RETURN_IF_ERROR(get("RRefReference", "parent", in.parent(), out.parent));
  }
  if (out.parent.valid() == (out.fork.creator == out.owner)) {
    return bad("RRefReference", "parent", "absent exactly when the owner is the sender");
  }
  return out;
}

absl::StatusOr<Creation> decode_creation(std::string_view bytes) {
  wire::RRefCreation in;
  WEFT_RETURN_IF_ERROR(parse("RRefCreation", bytes, in));
  Creation out;
  WEFT_RETURN_IF_ERROR(get_ids("RRefCreation", in, out));
  WEFT_RETURN_IF_ERROR(get("RRefCreation", in.type(), out.type));
  out.key = in.key();
  if (out.rref.creator != out.fork.creator) {
    return bad("RRefCreation", "fork", "fork and RRef have one creator");
  }
  return out;
}

absl::StatusOr<Target> decode_target(std::string_view bytes) {
  wire::RRefTarget in;
  WEFT_RETURN_IF_ERROR(parse("RRefTarget", bytes, in));
  Target out;
  WEFT_RETURN_IF_ERROR(get("RRefTarget", "rref", in.rref(), out.rref));
  WEFT_RETURN_IF_ERROR(get("RRefTarget", in.type(), out.type));
  out.key = in.key();
  return out;
}

absl::Status decode_references(const std::vector<std::string>& wires, std::vector<Reference>& out) {
  absl::Status first_error;
  for (const std::string& wire : wires) {
    absl::StatusOr<Reference> reference = decode_reference(wire);
    if (reference.ok()) {
      out.push_back(*std::move(reference));
    } else {
      first_error.Update(reference.status());
    }
  }
  return first_error;
}

}  // namespace weft::rref_internal
