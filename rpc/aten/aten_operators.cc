#include "weft/rpc/aten/aten_operators.h"

#include <optional>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status.h"
#include "weft/rpc/aten/aten.h"

namespace weft::rpc_internal {
namespace {

using c10::IValue;
using c10::TypeKind;

// The key is the full name, "aten::add.Tensor". LibTorch never removes its operators, so the
// handles stay valid.
using Operators = absl::flat_hash_map<std::string, c10::OperatorHandle>;

std::optional<c10::OperatorHandle> find_operator(const std::string& name) {
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
}

bool mentions(const c10::Type& type, TypeKind kind) {
  if (type.kind() == kind) return true;
  for (const c10::TypePtr& inside : type.containedTypes()) {
    if (mentions(*inside, kind)) return true;
  }
  return false;
}

// The reason why a worker must not allow an operator; empty if it may.
std::string refused_because(const c10::FunctionSchema& schema) {
  if (!absl::StartsWith(schema.name(), "aten::")) return "is no operator of ATen";
  for (const c10::Argument& argument : schema.arguments()) {
    // The declared type, because the dynamic type of a dtype or a layout is a number.
    const c10::Type& type = *argument.real_type();
    if (mentions(type, TypeKind::GeneratorType)) return "takes a generator";
    if (mentions(type, TypeKind::StorageType)) return "takes a storage";
    if (mentions(type, TypeKind::StringType) && (absl::StrContains(argument.name(), "file") ||
                                                 absl::StrContains(argument.name(), "path"))) {
      return "takes a path";
    }
  }
  return "";
}

absl::Status does_not_fit(const c10::FunctionSchema& schema, size_t position,
                          std::string_view why) {
  const c10::Argument& argument = schema.arguments()[position];
  return absl::InvalidArgumentError(
      absl::StrCat("argument ", position + 1, " of '", toString(schema.operator_name()), "', ",
                   argument.real_type()->str(), " ", argument.name(), ", ", absl_view(why)));
}

std::optional<IValue> number_below(const int64_t* number, int64_t end) {
  if (number == nullptr || *number < 0 || *number >= end) return std::nullopt;
  return IValue(*number);
}

// Converts the value to the declared type; nullopt if it does not fit.
std::optional<IValue> convert(AtenValue& value, const c10::Argument& argument,
                              const c10::Type& type) {
  const auto given = [&]<class T>(T*) { return std::get_if<T>(&value.any); };
  const auto* integer = given(static_cast<int64_t*>(nullptr));
  const auto* real = given(static_cast<double*>(nullptr));
  const auto* boolean = given(static_cast<bool*>(nullptr));
  switch (type.kind()) {
    case TypeKind::OptionalType:
      if (std::holds_alternative<std::monostate>(value.any)) return IValue();
      return convert(value, argument, *type.castRaw<c10::OptionalType>()->getElementType());
    case TypeKind::TensorType:
      if (auto* tensor = std::get_if<at::Tensor>(&value.any)) return IValue(std::move(*tensor));
      return std::nullopt;
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      if (integer != nullptr) return IValue(*integer);
      return std::nullopt;
    // Kernels do not check these numbers, so only values of the enum may pass.
    case TypeKind::ScalarTypeType:
      return number_below(integer, static_cast<int64_t>(c10::ScalarType::NumOptions));
    case TypeKind::LayoutType:
      return number_below(integer, static_cast<int64_t>(c10::Layout::NumOptions));
    case TypeKind::MemoryFormatType:
      return number_below(integer, static_cast<int64_t>(c10::MemoryFormat::NumOptions));
    case TypeKind::FloatType:
      if (real != nullptr) return IValue(*real);
      if (integer != nullptr) return IValue(static_cast<double>(*integer));
      return std::nullopt;
    case TypeKind::BoolType:
      if (boolean != nullptr) return IValue(*boolean);
      return std::nullopt;
    case TypeKind::NumberType:
      if (integer != nullptr) return IValue(*integer);
      if (real != nullptr) return IValue(*real);
      if (boolean != nullptr) return IValue(*boolean);
      return std::nullopt;
    case TypeKind::StringType:
      if (auto* text = std::get_if<std::string>(&value.any)) return IValue(std::move(*text));
      return std::nullopt;
    case TypeKind::ListType:
      break;
    default:
      return std::nullopt;
  }
  const c10::Type& element = *type.castRaw<c10::ListType>()->getElementType();
  switch (element.kind()) {
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      if (auto* list = std::get_if<std::vector<int64_t>>(&value.any)) return IValue(*list);
      // For a parameter "int[2] stride", one number means both.
      if (integer != nullptr && argument.N().value_or(0) > 0) {
        return IValue(std::vector<int64_t>(static_cast<size_t>(*argument.N()), *integer));
      }
      return std::nullopt;
    case TypeKind::FloatType:
      if (auto* list = std::get_if<std::vector<double>>(&value.any)) return IValue(*list);
      return std::nullopt;
    case TypeKind::BoolType:
      if (auto* list = std::get_if<std::vector<bool>>(&value.any)) {
        c10::List<bool> copy;
        for (const bool each : *list) copy.push_back(each);
        return IValue(std::move(copy));
      }
      return std::nullopt;
    case TypeKind::TensorType:
      if (auto* list = std::get_if<std::vector<at::Tensor>>(&value.any)) return IValue(*list);
      return std::nullopt;
    case TypeKind::OptionalType: {
      auto* list = std::get_if<std::vector<at::Tensor>>(&value.any);
      if (list == nullptr || !mentions(element, TypeKind::TensorType)) return std::nullopt;
      c10::List<std::optional<at::Tensor>> tensors;
      for (at::Tensor& each : *list) {
        tensors.push_back(each.defined() ? std::optional<at::Tensor>(each) : std::nullopt);
      }
      return IValue(std::move(tensors));
    }
    default:
      return std::nullopt;
  }
}

absl::Status make_stack(const c10::FunctionSchema& schema, std::vector<AtenValue>& values,
                        std::vector<IValue>& stack) {
  const std::vector<c10::Argument>& arguments = schema.arguments();
  if (values.size() > arguments.size()) {
    return absl::InvalidArgumentError(absl::StrCat("'", toString(schema.operator_name()),
                                                   "' takes ", arguments.size(), " arguments, not ",
                                                   values.size()));
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (i >= values.size()) {
      if (!arguments[i].default_value()) return does_not_fit(schema, i, "is missing");
      stack.push_back(*arguments[i].default_value());
      continue;
    }
    std::optional<IValue> value = convert(values[i], arguments[i], *arguments[i].real_type());
    if (!value) return does_not_fit(schema, i, "has another type");
    stack.push_back(*std::move(value));
  }
  return absl::OkStatus();
}

std::optional<AtenValue> result_of(const IValue& value) {
  if (value.isNone()) return AtenValue();
  if (value.isTensor()) return AtenValue(value.toTensor());
  if (value.isInt()) return AtenValue(value.toInt());
  if (value.isDouble()) return AtenValue(value.toDouble());
  if (value.isBool()) return AtenValue(value.toBool());
  if (value.isString()) return AtenValue(value.toStringRef());
  if (value.isTensorList()) return AtenValue(value.toTensorVector());
  if (value.isIntList()) return AtenValue(value.toIntVector());
  if (value.isDoubleList()) return AtenValue(value.toDoubleVector());
  return std::nullopt;
}

template <class T>
Object make_object(T value) {
  return {std::make_shared<T>(std::move(value)), &type_info_of<T>()};
}
template <size_t... i>
Object tuple_object(std::vector<AtenValue>& values, std::index_sequence<i...>) {
  if (!(std::holds_alternative<at::Tensor>(values[i].any) && ...)) return {};
  const auto tensor = [&](size_t number) {
    return std::get<at::Tensor>(std::move(values[number].any));
  };
  return make_object(std::make_tuple(tensor(i)...));
}

// Makes the object of a `remote` call from results of the types of kAtenObject. The object has no
// type if the results have other types.
Object object_of(std::vector<AtenValue>& values) {
  if (values.empty()) return {nullptr, &type_info_of<void>()};
  if (values.size() == 1) {
    return std::visit(
        []<class T>(T& value) {
          if constexpr (std::is_same_v<T, std::monostate>) {
            return Object();
          } else {
            return make_object(std::move(value));
          }
        },
        values[0].any);
  }
  Object object;
  [&]<size_t... i>(std::index_sequence<i...>) {
    (void)((values.size() == i + 2 &&
            (object = tuple_object(values, std::make_index_sequence<i + 2>()), true)) ||
           ...);
  }
  (std::make_index_sequence<kMostTensorsOfAnObject - 1>());
  return object;
}

void describe_run(SchemaBuilder& schema) {
  describe_function<std::vector<AtenValue>, std::string, std::vector<AtenValue>>(schema);
}

// A call of an operator whose arguments fit.
struct OperatorCall {
  std::string name;
  const c10::OperatorHandle* op = nullptr;
  std::vector<IValue> stack;
};

absl::StatusOr<OperatorCall> read_call(const Operators& allowed, Reader& reader) {
  OperatorCall call;
  call.name = Codec<std::string>::decode(reader);
  std::vector<AtenValue> arguments = Codec<std::vector<AtenValue>>::decode(reader);
  WEFT_RETURN_IF_ERROR(reader.finish());
  const auto found = allowed.find(call.name);
  if (found == allowed.end()) {
    return absl::PermissionDeniedError(
        absl::StrCat("this worker does not allow the operator '", call.name,
                     "': WorkerOptions::allow_operators has to name it"));
  }
  call.op = &found->second;
  WEFT_RETURN_IF_ERROR(make_stack(call.op->schema(), arguments, call.stack));
  return call;
}

void invoke_run(const FunctionEntry& entry, Reader& reader, const Object*, CallContext&,
                ResultSinkPtr sink) {
  const auto& allowed = *static_cast<const Operators*>(entry.state.get());
  absl::StatusOr<OperatorCall> call;
  const absl::Status thrown = run_user_code([&] { call = read_call(allowed, reader); });
  if (!thrown.ok()) call = absl::InvalidArgumentError(thrown.message());
  if (!call.ok()) {
    sink->fail(with_ran(std::move(call).status(), Ran::kNo));
    return;
  }
  const std::string& name = call->name;
  std::vector<IValue>& stack = call->stack;
  std::vector<AtenValue> results;
  Writer writer;
  Object object;
  absl::Status status = run_user_code([&] {
    call->op->callBoxed(stack);
    for (const IValue& value : stack) {
      std::optional<AtenValue> result = result_of(value);
      if (!result) {
        writer.fail(absl::InvalidArgumentError(
            absl::StrCat("'", name, "' gives a ", value.tagKind(), ", which cannot be sent")));
        return;
      }
      results.push_back(*std::move(result));
    }
    if (!sink->wants_object()) {
      Codec<std::vector<AtenValue>>::encode(writer, results);
      return;
    }
    object = object_of(results);
    if (object.type != nullptr) return;
    writer.fail(absl::InvalidArgumentError(
        absl::StrCat("'", name, "' gives ", results.size(), " values of which no RRef is made")));
  });
  if (status.ok()) status = with_ran(writer.status(), Ran::kYes);
  if (!status.ok()) {
    sink->fail(std::move(status));
  } else if (object.type != nullptr) {
    sink->finish(std::move(object));
  } else {
    finish_sink(std::move(sink), std::move(writer));
  }
}

constexpr CallableType kRunType{FunctionKind::kFunction, &describe_run, &invoke_run};

}  // namespace

absl::Status add_operators(const std::vector<std::string>& allowed, RegistryBuilder& registry) {
  auto operators = std::make_shared<Operators>();
  std::vector<std::string> problems;
  for (const std::string& name : allowed) {
    const std::optional<c10::OperatorHandle> found = find_operator(name);
    if (!found) {
      problems.push_back(absl::StrCat("'", name, "' is no operator of this LibTorch"));
    } else if (const std::string why = refused_because(found->schema()); !why.empty()) {
      problems.push_back(absl::StrCat("'", name, "' ", why));
    } else {
      operators->emplace(name, *found);
    }
  }
  if (!problems.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("allow_operators: ", absl::StrJoin(problems, "; ")));
  }
  Declaration declaration;
  declaration.name = std::string(kAtenFunction);
  declaration.type = &kRunType;
  declaration.callable = object_key(operators.get());
  declaration.file = __FILE__;
  declaration.line = __LINE__;
  declaration.state = std::move(operators);
  registry.add(std::move(declaration));
  return absl::OkStatus();
}

}  // namespace weft::rpc_internal
