#include "weft/rpc/aten/aten.h"

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/rpc/aten/aten_operators.h"

namespace weft::rpc_internal {

Outgoing open_aten_call(const Destination& to, std::string_view name,
                        std::vector<AtenValue> arguments) {
  static constexpr Function<std::vector<AtenValue>(std::string, std::vector<AtenValue>)> kRun{
      kAtenFunction};
  Outgoing call = open_call(to);
  choose(call, kRun);
  put_arguments<std::string, std::vector<AtenValue>>(call, std::string(name), std::move(arguments));
  return call;
}

absl::Status other_aten_result(const ReplyContext& context, std::string_view name, size_t given) {
  return explain_failure(
      context, with_ran(absl::InternalError(absl::StrCat("'", absl_view(name), "' gave ", given,
                                                         given == 1 ? " value" : " values",
                                                         ", not what weft::aten<R> asks for")),
                        Ran::kYes));
}

}  // namespace weft::rpc_internal
