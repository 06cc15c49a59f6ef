#include "weft/pipeline/schedules/schedule.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "weft/base/status.h"
#include "weft/pipeline/schedules/internal/action_graph.h"

namespace weft {
namespace {

using pipeline_internal::kMostNumber;

constexpr absl::string_view kWorks = "FRIWBG";

absl::Status bad_cell(absl::string_view cell, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("'", cell.substr(0, 40), "' ", why));
}

absl::StatusOr<int> number_of(absl::string_view digits, absl::string_view cell) {
  int number = 0;
  const bool plain =
      !digits.empty() && std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit);
  if (!plain || !absl::SimpleAtoi(digits, &number) || number >= kMostNumber) {
    return bad_cell(cell, "is no action such as 0F3");
  }
  return number;
}

absl::StatusOr<StageAction> parse_action(absl::string_view cell) {
  if (absl::string_view stage = cell; absl::ConsumeSuffix(&stage, "REDUCE_GRAD")) {  // torch's G
    StageAction reduce{0, StageWork::kReduce, 0};
    WEFT_ASSIGN_OR_RETURN(reduce.stage, number_of(stage, cell));
    return reduce;
  }
  const size_t at = cell.find_first_of(kWorks);
  if (at == absl::string_view::npos) return bad_cell(cell, "is no action such as 0F3");
  StageAction action;
  action.work = static_cast<StageWork>(cell[at]);
  WEFT_ASSIGN_OR_RETURN(action.stage, number_of(cell.substr(0, at), cell));
  const absl::string_view rest = cell.substr(at + 1);
  if (action.work == StageWork::kReduce) {
    if (!rest.empty()) return bad_cell(cell, "is for the whole step, so it has no micro-batch");
    return action;
  }
  WEFT_ASSIGN_OR_RETURN(action.micro_batch, number_of(rest, cell));
  return action;
}

absl::Status parse_cell(absl::string_view cell, std::vector<StageAction>& row) {
  absl::string_view inside = cell;
  if (absl::ConsumeSuffix(&inside, ")OVERLAP_F_B") && absl::ConsumePrefix(&inside, "(")) {
    for (const absl::string_view part : absl::StrSplit(inside, ';')) {
      WEFT_ASSIGN_OR_RETURN(const StageAction action, parse_action(part));
      row.push_back(action);
    }
    return absl::OkStatus();
  }
  WEFT_ASSIGN_OR_RETURN(const StageAction action, parse_action(cell));
  row.push_back(action);
  return absl::OkStatus();
}

}  // namespace

std::string StageAction::to_string() const {
  const std::string start = absl::StrCat(stage, std::string(1, static_cast<char>(work)));
  return work == StageWork::kReduce ? start : absl::StrCat(start, micro_batch);
}

int PipelineSchedule::stages() const {
  int stages = 0;
  for (const auto& row : workers) {
    for (const StageAction& action : row) stages = std::max(stages, action.stage + 1);
  }
  return stages;
}

int PipelineSchedule::micro_batches() const {
  int micro_batches = 0;
  for (const auto& row : workers) {
    for (const StageAction& action : row) {
      micro_batches = std::max(micro_batches, action.micro_batch + 1);
    }
  }
  return micro_batches;
}

bool PipelineSchedule::trains() const {
  for (const auto& row : workers) {
    for (const StageAction& action : row) {
      if (action.work != StageWork::kForward) return true;
    }
  }
  return false;
}

PipelineSchedule PipelineSchedule::forwards() const {
  PipelineSchedule forwards = *this;
  for (auto& row : forwards.workers) {
    std::erase_if(row, [](const StageAction& each) { return each.work != StageWork::kForward; });
  }
  return forwards;
}

PipelineSchedule PipelineSchedule::recomputing(const std::set<int>& stages) const {
  std::set<int> left = stages;
  for (const auto& row : workers) {
    for (const StageAction& action : row) {
      if (action.work == StageWork::kRecompute) left.erase(action.stage);
    }
  }
  PipelineSchedule schedule;
  for (const auto& row : workers) {
    std::vector<StageAction>& to = schedule.workers.emplace_back();
    for (const StageAction& action : row) {
      const bool backward =
          action.work == StageWork::kInputGradients || action.work == StageWork::kBackward;
      if (backward && left.contains(action.stage)) {
        to.push_back({action.stage, StageWork::kRecompute, action.micro_batch});
      }
      to.push_back(action);
    }
  }
  return schedule;
}

std::string PipelineSchedule::to_csv() const {
  std::string text;
  for (const auto& row : workers) {
    absl::StrAppend(&text,
                    absl::StrJoin(row, ",",
                                  [](std::string* out, const StageAction& action) {
                                    absl::StrAppend(out, action.to_string());
                                  }),
                    "\n");
  }
  return text;
}

absl::StatusOr<PipelineSchedule> PipelineSchedule::from_csv(std::string_view text) {
  PipelineSchedule schedule;
  // A file ends with a newline. Without one it may be cut off in the middle of a number.
  if (!text.ends_with('\n')) {
    return absl::InvalidArgumentError("a schedule ends with a newline; is the file cut off?");
  }
  text.remove_suffix(1);
  for (const absl::string_view line : absl::StrSplit(absl_view(text), '\n')) {
    std::vector<StageAction>& row = schedule.workers.emplace_back();
    for (const absl::string_view cell : absl::StrSplit(line, ',')) {
      const absl::string_view stripped = absl::StripAsciiWhitespace(cell);
      if (stripped.empty()) continue;
      if (absl::Status parsed = parse_cell(stripped, row); !parsed.ok()) {
        return prepend(absl::StrCat("row ", schedule.workers.size(), ": "), parsed);
      }
    }
  }
  return schedule;
}

}  // namespace weft
