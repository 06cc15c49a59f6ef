#include "weft/ddp/internal/optimizer_archive.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <torch/serialize/output-archive.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "weft/base/log.h"

namespace weft::ddp_internal {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

constexpr size_t kMostLevels = 16;
constexpr char kLevel = '.';

// The types of entries that are no tensors. A text is the type, a space and the value.
constexpr absl::string_view kArchive = "archive";
constexpr absl::string_view kNone = "none";
constexpr absl::string_view kUndefined = "undefined";  // a tensor
constexpr absl::string_view kInt = "int ";
constexpr absl::string_view kFloat = "float ";
constexpr absl::string_view kBool = "bool ";
constexpr absl::string_view kText = "text ";
constexpr absl::string_view kTuple = "tuple ";      // and its size; entries "0", "1", ...
constexpr absl::string_view kTensors = "tensors ";  // a list of tensors, likewise

template <class... Text>
[[noreturn]] void refuse(const std::string& name, const Text&... why) {
  C10_THROW_ERROR(ValueError,
                  absl::StrCat("the optimizer's state '", printable(name), "' ", why...));
}

// LibTorch writes the names of an archive into a source text that it compiles when the archive is
// loaded. So a name must not have a character that ends a quoted text.
void check_key(const std::string& name, const std::string& key) {
  const bool plain = std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '/' || c == '-';
  });
  if (key.empty() || !plain) refuse(name, "has a name that no optimizer gives");
}

// ---- from an archive

class Flattener {
 public:
  explicit Flattener(const torch::optim::Optimizer& optimizer) {
    size_t index = 0;
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        // As LibTorch writes addresses.
        const auto address = reinterpret_cast<size_t>(parameter.unsafeGetTensorImpl());
        indices_.emplace(std::to_string(address), std::to_string(index++));
      }
    }
  }

  void add(InputArchive& archive, const std::string& prefix) {
    for (const std::string& key : archive.keys()) {
      const std::string name = absl::StrCat(prefix, index_of(key));
      check_key(name, key);
      InputArchive nested;
      if (archive.try_read(key, nested)) {
        state_.metadata[name] = std::string(kArchive);
        add(nested, absl::StrCat(name, std::string(1, kLevel)));
        continue;
      }
      c10::IValue value;
      archive.read(key, value);
      add(value, name);
    }
  }

  StateFile take() { return std::move(state_); }

 private:
  void add(const c10::IValue& value, const std::string& name) {
    std::string& text = state_.metadata[name];
    if (value.isTensor()) {
      if (value.toTensor().defined()) {
        state_.metadata.erase(name);
        state_.tensors[name] = value.toTensor();
      } else {
        text = std::string(kUndefined);
      }
    } else if (value.isNone()) {
      text = std::string(kNone);
    } else if (value.isInt()) {
      text = absl::StrCat(kInt, value.toInt());
    } else if (value.isDouble()) {
      text = absl::StrCat(kFloat, absl::StrFormat("%.17g", value.toDouble()));
    } else if (value.isBool()) {
      text = absl::StrCat(kBool, value.toBool() ? 1 : 0);
    } else if (value.isString()) {
      text = absl::StrCat(kText, index_of(value.toStringRef()));
    } else if (value.isTuple()) {
      const auto& elements = value.toTupleRef().elements();
      text = absl::StrCat(kTuple, elements.size());
      for (size_t i = 0; i < elements.size(); ++i) add(elements[i], element_name(name, i));
    } else if (value.isTensorList()) {
      const std::vector<at::Tensor> tensors = value.toTensorVector();
      text = absl::StrCat(kTensors, tensors.size());
      for (size_t i = 0; i < tensors.size(); ++i) add(tensors[i], element_name(name, i));
    } else {
      refuse(name, "is a ", value.tagKind(), ", which a checkpoint cannot hold");
    }
  }

  static std::string element_name(const std::string& name, size_t index) {
    return absl::StrCat(name, std::string(1, kLevel), index);
  }

  const std::string& index_of(const std::string& text) const {
    const auto found = indices_.find(text);
    return found == indices_.end() ? text : found->second;
  }

  std::map<std::string, std::string> indices_;  // by address, both in decimal
  StateFile state_;
};

// ---- to an archive

struct Node {
  std::string name;                 // from the root, for errors
  std::optional<std::string> text;  // no tensor
  at::Tensor tensor;
  std::map<std::string, Node> parts;
};

Node& node_at(Node& root, const std::string& name) {
  const std::vector<std::string> keys = absl::StrSplit(name, kLevel);
  if (keys.size() > kMostLevels) refuse(name, "has more than ", kMostLevels, " levels");
  Node* node = &root;
  for (const std::string& key : keys) {
    check_key(name, key);
    Node& part = node->parts[key];
    part.name = node == &root ? key : absl::StrCat(node->name, std::string(1, kLevel), key);
    node = &part;
  }
  return *node;
}

c10::IValue value_of(const Node& node);

// The elements of a tuple or list. `size` is a text of the file.
std::vector<c10::IValue> elements_of(const Node& node, absl::string_view size) {
  std::vector<c10::IValue> elements;
  for (size_t i = 0; i < node.parts.size(); ++i) {
    const auto part = node.parts.find(std::to_string(i));
    if (part == node.parts.end()) refuse(node.name, "has no element ", i);
    elements.push_back(value_of(part->second));
  }
  if (size != std::to_string(elements.size())) refuse(node.name, "has not all of its elements");
  return elements;
}

c10::IValue value_of(const Node& node) {
  if (!node.text) {
    if (!node.tensor.defined()) refuse(node.name, "is missing");
    return node.tensor;
  }
  absl::string_view text = *node.text;
  const auto is = [&text](absl::string_view type) { return absl::ConsumePrefix(&text, type); };
  if (is(kText)) return c10::IValue(std::string(text));
  if (is(kTuple)) return c10::ivalue::Tuple::create(elements_of(node, text));
  if (is(kTensors)) {
    c10::List<at::Tensor> list;
    for (const c10::IValue& element : elements_of(node, text)) list.push_back(element.toTensor());
    return list;
  }
  if (is(kInt)) {
    int64_t number = 0;
    if (absl::SimpleAtoi(text, &number)) return number;
  } else if (is(kFloat)) {
    double number = 0;
    if (absl::SimpleAtod(text, &number)) return number;
  } else if (is(kBool)) {
    if (text == "0" || text == "1") return c10::IValue(text == "1");
  } else if (*node.text == kNone) {
    return c10::IValue();
  } else if (*node.text == kUndefined) {
    return at::Tensor();
  }
  refuse(node.name, "is '", printable(*node.text), "', which is no value");
}

void fill(OutputArchive& archive, const Node& node) {
  for (const auto& [key, part] : node.parts) {
    if (part.text && *part.text == kArchive) {
      OutputArchive nested(archive.compilation_unit());
      fill(nested, part);
      archive.write(key, nested);
    } else {
      archive.write(key, value_of(part));
    }
  }
}

}  // namespace

StateFile optimizer_state(const torch::optim::Optimizer& optimizer) {
  OutputArchive written;
  optimizer.save(written);
  std::stringstream memory;  // LibTorch reads back only what was serialised
  written.save_to(memory);
  InputArchive archive;
  archive.load_from(memory, at::Device(at::kCPU));
  Flattener flattener(optimizer);
  flattener.add(archive, "");
  return flattener.take();
}

InputArchive optimizer_archive(const StateFile& state) {
  Node root;
  for (const auto& [name, text] : state.metadata) node_at(root, name).text = text;
  for (const auto& [name, tensor] : state.tensors) {
    Node& node = node_at(root, name);
    if (node.text) refuse(name, "is there twice");
    node.tensor = tensor;
  }
  OutputArchive archive;
  fill(archive, root);
  std::stringstream memory;
  archive.save_to(memory);
  InputArchive read;
  read.load_from(memory, at::Device(at::kCPU));
  return read;
}

}  // namespace weft::ddp_internal
