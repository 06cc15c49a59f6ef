// Lets weft::remote run an ATen operator (weft::aten) and leave its result on that worker.
//
//   weft::RRef<at::Tensor> sum = weft::remote("worker1", weft::aten("aten::add.Tensor"), a, b);
//   auto sorted = weft::remote(
//       "worker1", weft::aten<std::tuple<at::Tensor, at::Tensor>>("aten::sort"), a);
//
// The value is the one that rpc_sync would return: a tensor, a number, a bool, a string, a list of
// tensors or of numbers, or a std::tuple of 2 to 8 tensors. An RRef<void> has its value when the
// operator has returned.
//
// Thread safety: as remote (rref.h).
// Errors: each use of the RRef may throw those of rpc/aten/aten.h; the call itself those of remote.
#pragma once

#include <type_traits>
#include <utility>

#include "weft/rpc/aten/aten.h"
#include "weft/rref/rref.h"

namespace weft {

template <class R, class... Argument>
requires(std::is_convertible_v<Argument, AtenValue>&&...) RRef<R> remote(const Destination& to,
                                                                         AtenOperator<R> op,
                                                                         Argument&&... argument) {
  static_assert(
      rpc_internal::kAtenObject<R>,
      "weft: what an operator leaves for an RRef is a tensor, a number, a bool, a string, "
      "a list of tensors or of numbers, a std::tuple of 2 to 8 tensors, or void");
  return RRef<R>(rref_internal::start_remote(
      rpc_internal::open_aten_call(
          to, op.name, rpc_internal::aten_arguments(std::forward<Argument>(argument)...)),
      type_info_of<R>()));
}

}  // namespace weft
