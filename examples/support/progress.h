// Shows how far a long job is: a bar on a terminal, otherwise a plain line now and then.
//
//   terminal   train ━━━━━━━━━━────────  52%  31,200/60,000  5,210 images/s  0:05 left  loss 0.312
//   file       train 31,200/60,000 (52%), 5,210 images/s, 0:05 left, loss 0.312
//
// The bar takes one line, never more columns than the terminal has. It is redrawn at most ten times
// a second. If NO_COLOR is set, there is no colour. If the locale is not UTF-8, the characters of
// the line are plain ASCII.
//
// Thread safety: belongs to one thread.
// Lifetime: the clock outlives the bar.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

#include "weft/base/clock.h"

namespace weft::examples {

class Progress {
 public:
  struct Options {
    std::string label;
    std::string unit = "images";
    int64_t total = 0;  // the amount that is 100 %
    int64_t start = 0;  // done by an earlier run: not part of the rate

    bool terminal = false;
    bool color = false;
    bool utf8 = false;
    std::function<int()> columns = [] { return 80; };     // asked at every redraw
    Nanoseconds line_interval = std::chrono::seconds(5);  // without a terminal

    // The options for standard output: terminal, width, NO_COLOR and locale.
    static Options for_stdout(std::string label, int64_t total);
  };
  using Sink = std::function<void(std::string_view)>;

  // The default sink is standard output, flushed at once.
  Progress(Options options, Clock& clock);
  Progress(Options options, Clock& clock, Sink sink);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // finishes

  // `note` follows the numbers: "loss 0.31".
  void update(int64_t done, std::string note = "");
  // Prints a line of its own above the bar.
  void print(std::string_view line);
  // Shows the last state and ends the line. Later updates do nothing.
  void finish();

 private:
  struct Sample {
    TimePoint when;
    int64_t done;
  };

  void show(TimePoint now);
  double rate() const;  // per second, over the last seconds
  std::string numbers(const char* separator) const;
  std::string bar_line() const;
  std::string plain_line() const;

  Options options_;
  Clock& clock_;
  Sink sink_;
  int64_t done_;
  std::string note_;
  std::deque<Sample> samples_;
  TimePoint shown_at_;
  bool bar_is_up_ = false;  // the cursor is in a drawn bar
  bool up_to_date_ = false;
  bool finished_ = false;
};

// 1234567 as "1,234,567".
std::string with_commas(int64_t number);
// 75.4 as "1:15", 3700 as "1:01:40".
std::string as_clock(double seconds);

}  // namespace weft::examples
