#include "weft/examples/support/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace weft::examples {
namespace {

constexpr Nanoseconds kRedraw = std::chrono::milliseconds(100);
constexpr Nanoseconds kRateWindow = std::chrono::seconds(10);
constexpr Nanoseconds kSampleSpacing = std::chrono::milliseconds(250);
constexpr int kSmallestBar = 8;
constexpr int kLargestBar = 40;
constexpr const char* kEraseLine = "\r\x1b[K";

double seconds(Nanoseconds span) { return std::chrono::duration<double>(span).count(); }

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

bool locale_is_utf8() {
  for (const char* variable : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (!is_set(variable)) continue;
    const std::string value = absl::AsciiStrToLower(std::getenv(variable));
    return absl::StrContains(value, "utf-8") || absl::StrContains(value, "utf8");
  }
  return false;
}

// weft_launch reads the output of its processes from pipes. It sets this variable to the width of
// its terminal.
constexpr const char* kLauncherColumns = "WEFT_TERMINAL_COLUMNS";

int stdout_columns() {
  int columns = 0;
  const char* told = std::getenv(kLauncherColumns);
  if (told != nullptr && absl::SimpleAtoi(told, &columns) && columns > 0) return columns;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

void write_stdout(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string repeat(const char* piece, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += piece;
  return text;
}

}  // namespace

Progress::Options Progress::Options::for_stdout(std::string label, int64_t total) {
  Options options;
  options.label = std::move(label);
  options.total = total;
  const char* kind = std::getenv("TERM");
  options.terminal = (::isatty(STDOUT_FILENO) == 1 || is_set(kLauncherColumns)) &&
                     kind != nullptr && absl::string_view(kind) != "dumb";
  options.color = options.terminal && !is_set("NO_COLOR");
  options.utf8 = locale_is_utf8();
  options.columns = stdout_columns;
  return options;
}

Progress::Progress(Options options, Clock& clock)
    : Progress(std::move(options), clock, write_stdout) {}

Progress::Progress(Options options, Clock& clock, Sink sink)
    : options_(std::move(options)),
      clock_(clock),
      sink_(std::move(sink)),
      done_(options_.start),
      shown_at_(clock.now()) {
  samples_.push_back({shown_at_, done_});
}

Progress::~Progress() { finish(); }

void Progress::update(int64_t done, std::string note) {
  if (finished_) return;
  const int64_t before = std::exchange(done_, std::clamp<int64_t>(done, 0, options_.total));
  note_ = std::move(note);
  up_to_date_ = false;
  const TimePoint now = clock_.now();
  if (done_ < before) samples_ = {{now, done_}};  // work was lost, so the rate begins anew
  if (now - samples_.back().when >= kSampleSpacing) samples_.push_back({now, done_});
  while (samples_.size() > 2 && now - samples_[1].when >= kRateWindow) samples_.pop_front();
  const Nanoseconds interval = options_.terminal ? kRedraw : options_.line_interval;
  const bool first_bar = options_.terminal && !bar_is_up_;
  if (first_bar || now - shown_at_ >= interval) show(now);
}

void Progress::print(std::string_view line) {
  std::string text = bar_is_up_ ? kEraseLine : "";
  text.append(line).append("\n");
  sink_(text);
  if (!bar_is_up_) return;
  bar_is_up_ = false;
  if (!finished_) show(clock_.now());
}

void Progress::finish() {
  if (finished_) return;
  if (!up_to_date_) show(clock_.now());
  if (bar_is_up_) sink_("\n");
  bar_is_up_ = false;
  finished_ = true;
}

void Progress::show(TimePoint now) {
  shown_at_ = now;
  up_to_date_ = true;
  if (options_.terminal) {
    sink_(absl::StrCat(kEraseLine, bar_line()));
    bar_is_up_ = true;
  } else {
    sink_(absl::StrCat(plain_line(), "\n"));
  }
}

double Progress::rate() const {
  const double elapsed = seconds(clock_.now() - samples_.front().when);
  return elapsed <= 0 ? 0 : static_cast<double>(done_ - samples_.front().done) / elapsed;
}

// Rate, remaining time and note. These are cut when the line is too long.
std::string Progress::numbers(const char* separator) const {
  std::vector<std::string> parts;
  const double per_second = rate();
  if (per_second > 0) {
    const std::string number = per_second >= 10 ? with_commas(std::llround(per_second))
                                                : absl::StrFormat("%.2g", per_second);
    parts.push_back(absl::StrCat(number, " ", options_.unit, "/s"));
    if (done_ < options_.total) {
      const double left = static_cast<double>(options_.total - done_) / per_second;
      parts.push_back(absl::StrCat(as_clock(left), " left"));
    }
  }
  if (!note_.empty()) parts.push_back(note_);
  return absl::StrJoin(parts, separator);
}

std::string Progress::plain_line() const {
  const int percent = options_.total > 0 ? static_cast<int>(100.0 * done_ / options_.total) : 100;
  const std::string rest = numbers(", ");
  return absl::StrCat(options_.label, " ", with_commas(done_), "/", with_commas(options_.total),
                      " (", percent, "%)", rest.empty() ? "" : ", ", rest);
}

std::string Progress::bar_line() const {
  const double share = options_.total > 0 ? static_cast<double>(done_) / options_.total : 1.0;
  const std::string head = absl::StrCat(options_.label, " ");
  std::string tail = absl::StrFormat(" %3d%%  %s/%s", static_cast<int>(100 * share),
                                     with_commas(done_), with_commas(options_.total));
  if (const std::string rest = numbers("  "); !rest.empty()) absl::StrAppend(&tail, "  ", rest);

  // The last column stays free, because some terminals wrap when it is written. Labels and notes
  // are ASCII, one column per byte.
  const int columns = std::max(options_.columns() - 1, 1);
  const int room = columns - static_cast<int>(head.size() + tail.size());
  if (room < kSmallestBar) return absl::StrCat(head, tail).substr(0, columns);

  const int width = std::min(room, kLargestBar);
  const int filled = static_cast<int>(std::floor(share * width));
  const char* full = options_.utf8 ? "━" : "#";
  const char* open = options_.utf8 ? "─" : "-";
  const char* paint = options_.color ? "\x1b[36m" : "";
  const char* dim = options_.color ? "\x1b[2m" : "";
  const char* plain = options_.color ? "\x1b[0m" : "";
  return absl::StrCat(head, paint, repeat(full, filled), plain, dim, repeat(open, width - filled),
                      plain, tail);
}

std::string with_commas(int64_t number) {
  std::string digits = absl::StrCat(number);
  const size_t first = digits.front() == '-' ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

std::string as_clock(double seconds) {
  if (!(seconds < 360'000)) return "--:--";  // above 100 hours, or not a number
  const int64_t whole = std::llround(std::max(seconds, 0.0));
  if (whole < 3600) return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
  return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace weft::examples
