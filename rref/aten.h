// Leaves what an ATen operator gives on the worker that runs it: weft::remote for weft::aten.
//
//   weft::RRef<at::Tensor> sum = weft::remote("worker1", weft::aten("aten::add.Tensor"), a, b);
//   auto sorted = weft::remote(
//       "worker1", weft::aten<std::tuple<at::Tensor, at::Tensor>>("aten::sort"), a);
//
// The value is what rpc_sync would give: a tensor, a number, a bool, a string, a list of tensors or
// of numbers, or a std::tuple of 2 to 8 tensors. RRef<void> stands for the operator's end.
//
// Thread safety: as remote (rref.h).
// Errors: those of rpc/aten.h, by each use of the RRef; those of remote at once.
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
