// The generators: their laws, and that they equal torch's.
#include "weft/pipeline/schedules/schedules.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/pipeline/schedules/price.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

// Forward, input gradients and weight gradients take one unit each on each worker, over all of its
// stages. A result is kept until its weight gradients, and counts as one byte.
SchedulePrice price_of(const PipelineSchedule& schedule) {
  const int stages = schedule.stages();
  const double share = static_cast<double>(schedule.workers.size()) / stages;
  PipelineCosts costs;
  costs.stages.resize(static_cast<size_t>(stages), {.forward = share,
                                                    .input_gradients = share,
                                                    .weight_gradients = share,
                                                    .kept_bytes = 1,
                                                    .kept_for_weights = 1});
  return price_schedule(schedule, StageGraph::chain(stages), costs).value();
}

int64_t most_alive(const SchedulePrice& price) {
  int64_t most = 0;
  for (const auto& worker : price.workers) most = std::max(most, worker.peak_bytes);
  return most;
}

// Calls `test(p, m)` for p in 2..8 and m in p..32.
void for_sizes(const std::function<void(int p, int m)>& test) {
  for (int p = 2; p <= 8; ++p) {
    for (int m = p; m <= 32; ++m) {
      SCOPED_TRACE(::testing::Message() << "p = " << p << ", m = " << m);
      test(p, m);
    }
  }
}

TEST(SchedulesTest, FillDrain) {
  for_sizes([](int p, int m) {
    const SchedulePrice price = price_of(schedules::fill_drain(p, m).value());
    EXPECT_EQ(price.step, 3 * (m + p - 1));
    EXPECT_EQ(most_alive(price), m);
  });
}

TEST(SchedulesTest, OneForwardOneBackward) {
  for_sizes([](int p, int m) {
    const SchedulePrice price = price_of(schedules::one_forward_one_backward(p, m).value());
    EXPECT_EQ(price.step, 3 * (m + p - 1));
    for (int worker = 0; worker < p; ++worker) {
      EXPECT_EQ(price.workers[static_cast<size_t>(worker)].peak_bytes, p - worker);
    }
  });
}

TEST(SchedulesTest, Interleaved) {
  for_sizes([](int p, int m) {
    for (const int chunks : {2, 3}) {
      if (m % p != 0) continue;
      const double idle = 3.0 * (p - 1) / chunks;
      const SchedulePrice whole = price_of(schedules::interleaved(p, m, chunks).value());
      EXPECT_NEAR(whole.step, 3 * m + idle, 1e-9);
      if (m >= 2 * p) {
        EXPECT_EQ(most_alive(whole), p * chunks + p - 1);
      }
      const SchedulePrice breadth = price_of(schedules::breadth_first(p, m, chunks).value());
      EXPECT_NEAR(breadth.step, 3 * m + idle, 1e-9);
      EXPECT_EQ(most_alive(breadth), m * chunks);
      const SchedulePrice split = price_of(schedules::zero_bubble(p, m, chunks).value());
      EXPECT_NEAR(split.step, 3 * m + 1.0 * (p - 1) / chunks, 1e-9);
    }
  });
}

TEST(SchedulesTest, ZeroBubble) {
  for_sizes([](int p, int m) {
    const SchedulePrice price = price_of(schedules::zero_bubble(p, m).value());
    EXPECT_EQ(price.step, 3 * m + p - 1);
    EXPECT_EQ(most_alive(price), p);
  });
}

TEST(SchedulesTest, ZeroBubbleH2HasNoIdleTimeBetweenItsActions) {
  for_sizes([](int p, int m) {
    if (m < 2 * p - 1) return;
    const SchedulePrice price = price_of(schedules::zero_bubble_h2(p, m).value());
    EXPECT_EQ(price.step, 3 * m + p - 1);
    EXPECT_EQ(most_alive(price), 2 * p - 1);
    for (const auto& worker : price.workers) {
      EXPECT_EQ(worker.spans.back().end - worker.spans.front().begin, 3 * m);
    }
  });
}

TEST(SchedulesTest, ZeroBubbleV) {
  for_sizes([](int p, int m) {
    const SchedulePrice price = price_of(schedules::zero_bubble_v(p, m).value());
    if (m >= 2 * p) EXPECT_EQ(price.step, 3 * m + 0.5 * (p - 1));
    EXPECT_LE(most_alive(price), 2 * p);  // of half a worker's stages
  });
}

TEST(SchedulesTest, DualPipeV) {
  for_sizes([](int p, int m) {
    if (m < 2 * p) return;
    const SchedulePrice price = price_of(schedules::dual_pipe_v(p, m).value());
    EXPECT_EQ(price.step, 3 * m + 0.5 * (p - 1));
    EXPECT_EQ(most_alive(price), 2 * p + 1);
  });
}

TEST(SchedulesTest, HalfMemoryVIsBetweenTheLawsOfFillDrainAndZeroBubble) {
  for_sizes([](int p, int m) {
    const SchedulePrice price = price_of(schedules::half_memory_v(p, m).value());
    EXPECT_LE(most_alive(price), p + 1);
    EXPECT_LE(price.step, 3 * (m + p - 1));
  });
}

TEST(SchedulesTest, ForwardOnly) {
  const PipelineSchedule schedule = schedules::forward_only(3, 5).value();
  EXPECT_FALSE(schedule.trains());
  EXPECT_EQ(price_of(schedule).step, 7);
}

TEST(SchedulesTest, ImpossibleNumbersAreRefused) {
  for (const auto& [status, message] : {
           std::pair(schedules::fill_drain(0, 1).status(), "from 1 to 1048576 workers, not 0"),
           std::pair(schedules::zero_bubble(2, 0).status(), "1048576 micro-batches, not 0"),
           std::pair(schedules::interleaved(2, 4, 0).status(), "1048576 stages per worker, not 0"),
           std::pair(schedules::interleaved(2, 5, 2).status(),
                     "5 micro-batches do not make 2 equal rounds"),
           std::pair(schedules::dual_pipe_v(4, 7).status(),
                     "needs at least 8 micro-batches, not 7"),
       }) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

// golden/torch_schedules.py made the file.
TEST(SchedulesTest, EqualTorchs) {
  const std::string path =
      std::string(WEFT_SOURCE_DIR) + "/tests/pipeline/golden/torch_schedules.csv";
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  int compared = 0;
  std::string title, rows;
  const auto compare = [&] {
    std::istringstream words(title);
    std::string name;
    int p = 0, m = 0, chunks = 0;
    words >> name >> p >> m >> chunks;
    PipelineSchedule theirs = PipelineSchedule::from_csv(rows).value();
    for (auto& row : theirs.workers) {
      std::erase_if(row, [](const StageAction& each) { return each.work == StageWork::kReduce; });
    }
    absl::StatusOr<PipelineSchedule> ours =
        name == "GPipe"                   ? schedules::fill_drain(p, m)
        : name == "1F1B"                  ? schedules::one_forward_one_backward(p, m)
        : name == "LoopedBFS"             ? schedules::breadth_first(p, m, chunks)
        : name == "Interleaved1F1B"       ? schedules::interleaved(p, m, chunks)
        : name == "InterleavedZeroBubble" ? schedules::zero_bubble(p, m, chunks)
        : name == "ZBVZeroBubble"         ? schedules::zero_bubble_v(p, m)
                                          : schedules::dual_pipe_v(p, m);
    ASSERT_TRUE(ours.ok()) << ours.status();
    if (name == "1F1B") {  // torch's last row is wrong
      ours->workers.pop_back();
      theirs.workers.pop_back();
    }
    EXPECT_EQ(ours->to_csv(), theirs.to_csv()) << title;
    ++compared;
  };
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("# ")) {
      if (!title.empty()) compare();
      title = line.substr(2);
      rows.clear();
    } else {
      rows += line + "\n";
    }
  }
  compare();
  EXPECT_EQ(compared, 176);
}

}  // namespace
}  // namespace weft
