#include "weft/rpc/internal/invoke.h"

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/rpc/function.h"

namespace weft::rpc_internal {

void finish_sink(ResultSinkPtr sink, Writer value) {
  if (value.status().ok()) {
    sink->finish(std::move(value));
  } else {
    sink->fail(with_ran(prepend("the result cannot be sent: ", value.status()), Ran::kYes));
  }
}

void deliver_void(ResultSinkPtr sink) {
  if (sink->wants_object()) {
    sink->finish(Object{nullptr, &type_info_of<void>()});
  } else {
    sink->finish(Writer());
  }
}

absl::Status check_arguments(const FunctionEntry& entry, Reader& arguments, size_t decoded,
                             absl::Status thrown) {
  const bool all_decoded = thrown.ok() && arguments.ok();
  if (all_decoded && arguments.finish().ok()) return absl::OkStatus();
  const absl::Status& status = thrown.ok() ? arguments.status() : thrown;
  const std::string where =
      all_decoded ? absl::StrCat("arguments of '", entry.name, "': ")
                  : absl::StrCat("argument ", decoded + 1, " of '", entry.name, "': ");
  return with_ran(prepend(where, absl::InvalidArgumentError(status.message())), Ran::kNo);
}

const CallableType kRefusedType{FunctionKind::kFunction, nullptr, nullptr};

absl::Status check_target(const FunctionEntry& entry, const Object* target) {
  if (target != nullptr && target->value != nullptr && entry.accepts(*target)) {
    return absl::OkStatus();
  }
  return with_ran(
      absl::InvalidArgumentError(absl::StrCat(
          "'", entry.name, "' is called on ",
          target == nullptr || target->type == nullptr ? "no object" : target->type->name,
          ", not on an object of its class")),
      Ran::kNo);
}

absl::Status factory_needs_remote(const FunctionEntry& entry) {
  return with_ran(absl::InvalidArgumentError(absl::StrCat(
                      "'", entry.name, "' makes an object that stays there: call it with remote")),
                  Ran::kNo);
}

absl::Status empty_result(const FunctionEntry& entry, std::string_view what) {
  return with_ran(
      absl::FailedPreconditionError(absl::StrCat("'", entry.name, "' returned ", absl_view(what))),
      Ran::kYes);
}

TypeInfo make_type_info(std::string name, void (*encode)(Writer& writer, const void* value)) {
  TypeInfo info;
  info.hash = hash64(name);
  info.name = std::move(name);
  info.encode = encode;
  return info;
}

}  // namespace weft::rpc_internal
