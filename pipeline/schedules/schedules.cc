#include "weft/pipeline/schedules/schedules.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/pipeline/schedules/internal/action_graph.h"
#include "weft/pipeline/schedules/internal/row_writer.h"
#include "weft/pipeline/schedules/internal/v_pattern.h"

namespace weft::schedules {
namespace {

using pipeline_internal::kMostActions;
using pipeline_internal::kMostNumber;
using pipeline_internal::RowWriter;

absl::Status check_numbers(int workers, int micro_batches, int chunks = 1) {
  for (const auto& [name, number] :
       {std::pair("workers", workers), std::pair("micro-batches", micro_batches),
        std::pair("stages per worker", chunks)}) {
    if (number < 1 || number > kMostNumber) {
      return absl::InvalidArgumentError(
          absl::StrCat("a schedule has from 1 to ", kMostNumber, " ", name, ", not ", number));
    }
  }
  constexpr int64_t kMostOfEach = kMostActions / 3;  // there are up to three kinds of actions
  if (int64_t{workers} * chunks > kMostOfEach / micro_batches) {
    return absl::InvalidArgumentError(
        absl::StrCat(workers, " workers with ", chunks, " stages each and ", micro_batches,
                     " micro-batches have more than ", kMostActions, " actions"));
  }
  return absl::OkStatus();
}

PipelineSchedule of_rows(int workers, int micro_batches,
                         const std::function<void(int worker, RowWriter& row)>& write) {
  PipelineSchedule schedule;
  for (int worker = 0; worker < workers; ++worker) {
    RowWriter row(micro_batches);
    write(worker, row);
    schedule.workers.push_back(row.take());
  }
  return schedule;
}

// The order in which a worker with several stages goes through them: all micro-batches of a round
// in one stage, then the same ones in the next stage.
struct Rounds {
  int workers;
  int chunks;
  int length;  // micro-batches of a round

  int forward_stage(int worker, int step) const {
    return (step / length) % chunks * workers + worker;
  }
  int backward_stage(int worker, int step) const {
    return (chunks - 1 - (step / length) % chunks) * workers + worker;
  }
};

absl::StatusOr<Rounds> rounds_of(int workers, int micro_batches, int chunks) {
  WEFT_RETURN_IF_ERROR(check_numbers(workers, micro_batches, chunks));
  if (chunks == 1) return Rounds{workers, 1, micro_batches};
  const int rounds = std::max(1, micro_batches / workers);
  if (micro_batches % rounds != 0) {
    return absl::InvalidArgumentError(absl::StrCat(micro_batches, " micro-batches do not make ",
                                                   rounds, " equal rounds, one per ", workers,
                                                   " workers"));
  }
  return Rounds{workers, chunks, micro_batches / rounds};
}

}  // namespace

absl::StatusOr<PipelineSchedule> forward_only(int workers, int micro_batches) {
  WEFT_RETURN_IF_ERROR(check_numbers(workers, micro_batches));
  return of_rows(workers, micro_batches, [&](int worker, RowWriter& row) {
    for (int i = 0; i < micro_batches; ++i) row.forward(worker);
  });
}

absl::StatusOr<PipelineSchedule> fill_drain(int workers, int micro_batches) {
  WEFT_RETURN_IF_ERROR(check_numbers(workers, micro_batches));
  return of_rows(workers, micro_batches, [&](int worker, RowWriter& row) {
    for (int i = 0; i < micro_batches; ++i) row.forward(worker);
    for (int i = 0; i < micro_batches; ++i) row.backward(worker);
  });
}

absl::StatusOr<PipelineSchedule> breadth_first(int workers, int micro_batches, int chunks) {
  WEFT_RETURN_IF_ERROR(check_numbers(workers, micro_batches, chunks));
  return of_rows(workers, micro_batches, [&](int worker, RowWriter& row) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int i = 0; i < micro_batches; ++i) row.forward(chunk * workers + worker);
    }
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
      for (int i = 0; i < micro_batches; ++i) row.last_backward(chunk * workers + worker);
    }
  });
}

absl::StatusOr<PipelineSchedule> one_forward_one_backward(int workers, int micro_batches) {
  WEFT_RETURN_IF_ERROR(check_numbers(workers, micro_batches));
  return of_rows(workers, micro_batches, [&](int worker, RowWriter& row) {
    for (int i = 0; i < workers - worker; ++i) row.forward(worker);
    for (int i = 0; i < micro_batches; ++i) {
      row.backward(worker);
      row.forward(worker);
    }
  });
}

absl::StatusOr<PipelineSchedule> interleaved(int workers, int micro_batches, int chunks) {
  WEFT_ASSIGN_OR_RETURN(const Rounds rounds, rounds_of(workers, micro_batches, chunks));
  const int steps = micro_batches * chunks;
  return of_rows(workers, micro_batches, [&](int worker, RowWriter& row) {
    // The last worker begins its first backward when the first round has come to the last stage.
    const int warm_up = std::min((chunks - 1) * rounds.length + 2 * (workers - 1 - worker), steps);
    for (int step = 0; step < warm_up; ++step) row.forward(rounds.forward_stage(worker, step));
    for (int step = 0; step < steps; ++step) {
      if (warm_up + step < steps) row.forward(rounds.forward_stage(worker, warm_up + step));
      row.backward(rounds.backward_stage(worker, step));
    }
  });
}

absl::StatusOr<PipelineSchedule> zero_bubble(int workers, int micro_batches, int chunks) {
  WEFT_ASSIGN_OR_RETURN(const Rounds rounds, rounds_of(workers, micro_batches, chunks));
  const int steps = micro_batches * chunks;
  return of_rows(workers, micro_batches, [&](int worker, RowWriter& row) {
    const int warm_up = std::min((chunks - 1) * rounds.length + workers - 1 - worker, steps);
    for (int step = 0; step < warm_up; ++step) row.forward(rounds.forward_stage(worker, step));
    for (int step = 0; step < steps; ++step) {
      if (warm_up + step < steps) row.forward(rounds.forward_stage(worker, warm_up + step));
      row.input_gradients(rounds.backward_stage(worker, step));
      // A later worker begins its backwards earlier. So it has as many weight gradients left for
      // the time in which it waits at the end.
      if (step >= worker) row.weight_gradients(rounds.backward_stage(worker, step - worker));
    }
    for (int step = std::max(0, steps - worker); step < steps; ++step) {
      row.weight_gradients(rounds.backward_stage(worker, step));
    }
  });
}

absl::StatusOr<PipelineSchedule> zero_bubble_h2(int workers, int micro_batches) {
  WEFT_RETURN_IF_ERROR(check_numbers(workers, micro_batches));
  return of_rows(workers, micro_batches, [&](int worker, RowWriter& row) {
    for (int i = 0; i < 2 * (workers - worker) - 1; ++i) row.forward(worker);
    for (int i = 0; i < micro_batches; ++i) {
      row.input_gradients(worker);
      if (i >= 2 * worker) row.weight_gradients(worker);
      row.forward(worker);
    }
    for (int i = 0; i < micro_batches; ++i) row.weight_gradients(worker);
  });
}

absl::StatusOr<PipelineSchedule> zero_bubble_v(int workers, int micro_batches) {
  WEFT_RETURN_IF_ERROR(check_numbers(workers, micro_batches, /*chunks=*/2));
  // The pattern needs so many micro-batches. If there are fewer, the last ones are left out again.
  const int planned = std::max(micro_batches, 2 * workers - 1);
  PipelineSchedule schedule = of_rows(workers, planned, [&](int worker, RowWriter& row) {
    const int down = worker, up = 2 * workers - 1 - worker;
    const auto backward = [&](int stage) {
      row.input_gradients(stage);
      row.weight_gradients(stage);
    };
    for (int i = 0; i < 2 * (workers - worker) - 1; ++i) row.forward(down);
    for (int i = 0; i < worker; ++i) {
      row.forward(up);
      row.forward(down);
    }
    for (int i = 0; i < workers - worker; ++i) {
      row.forward(up);
      backward(up);
    }
    while (row.count(StageWork::kForward, up) < planned) {
      row.forward(down);
      backward(down);
      row.forward(up);
      backward(up);
    }
    for (int i = 0; i < worker; ++i) {
      row.input_gradients(down);
      row.input_gradients(up);
    }
    for (int i = 0; i < workers - worker; ++i) {
      row.input_gradients(down);
      row.weight_gradients(down);
    }
    for (const int stage : {up, down}) {
      for (int i = 0; i < planned; ++i) row.weight_gradients(stage);
    }
  });
  for (std::vector<StageAction>& row : schedule.workers) {
    std::erase_if(row, [&](const StageAction& each) { return each.micro_batch >= micro_batches; });
  }
  return schedule;
}

absl::StatusOr<PipelineSchedule> half_memory_v(int workers, int micro_batches) {
  WEFT_RETURN_IF_ERROR(check_numbers(workers, micro_batches, /*chunks=*/2));
  // 1F1B keeps the results of p whole micro-batches, which are 2 p of half a worker's stages.
  std::optional<PipelineSchedule> schedule =
      pipeline_internal::v_schedule(workers, micro_batches, workers + 1);
  if (!schedule) {
    return absl::InvalidArgumentError(absl::StrCat("there is no V-Half for ", workers, " workers"));
  }
  return *std::move(schedule);
}

// The steps are those of DeepSeek's description of DualPipe-V. Pairs of a forward and a backward
// that follow each other overlap there; here they run one after the other.
absl::StatusOr<PipelineSchedule> dual_pipe_v(int workers, int micro_batches) {
  WEFT_RETURN_IF_ERROR(check_numbers(workers, micro_batches, /*chunks=*/2));
  if (micro_batches < 2 * workers) {
    return absl::InvalidArgumentError(absl::StrCat("DualPipe-V over ", workers,
                                                   " workers needs at least ", 2 * workers,
                                                   " micro-batches, not ", micro_batches));
  }
  return of_rows(workers, micro_batches, [&](int worker, RowWriter& row) {
    const int down = worker, up = 2 * workers - 1 - worker;
    const int after = workers - 1 - worker;  // workers behind this one
    std::deque<int> left;  // stages with weight gradients to be done, oldest first
    const auto first_half = [&](int stage) {
      row.input_gradients(stage);
      left.push_back(stage);
    };
    const auto second_half = [&] {
      row.weight_gradients(left.front());
      left.pop_front();
    };
    for (int i = 0; i < 2 * after; ++i) row.forward(down);
    for (int i = 0; i <= worker; ++i) {
      row.forward(down);
      row.forward(up);
    }
    for (int i = 0; i < after; ++i) {
      first_half(up);
      second_half();
      row.forward(up);
    }
    for (int i = 0; i < micro_batches - 2 * workers + worker + 1; ++i) {
      row.forward(down);
      row.backward(up);
      row.forward(up);
      row.backward(down);
    }
    for (int i = 0; i < after; ++i) {
      row.backward(up);
      row.forward(up);
      row.backward(down);
    }
    // Workers with odd numbers begin to split at the gradient that goes up, the others at the next.
    const int whole = 2 * ((worker + 1) / 2) + (worker % 2 == 0 ? 1 : 0);
    for (int i = 0; i < 2 * (worker + 1); ++i) {
      const int stage = i % 2 == 0 ? up : down;
      if (i < whole) {
        row.backward(stage);
      } else {
        first_half(stage);
      }
    }
    for (int i = 0; i < after; ++i) {
      if (!left.empty()) second_half();
      first_half(down);
    }
    while (!left.empty()) second_half();
  });
}

}  // namespace weft::schedules
