// Merges what many processes print into whole lines that say whose they are: "[2] loss 0.31".
//
// A progress line, one that is redrawn with carriage returns, stays at the bottom of a terminal
// while finished lines pass above it; into a file goes only its last state.
// Pure: bytes in, bytes out. Thread safety: none, one thread drives it.
// Bounds: a line longer than kMaxLine is cut into several; what was not yet taken by the caller is
// his to bound, by not feeding more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace weft::launch {

enum class Stream { kOut = 0, kErr = 1 };

class OutputMerger {
 public:
  static constexpr size_t kMaxLine = 64 * 1024;

  struct Options {
    // Per stream: it is a terminal. If both are, they are taken for the same one, and everything
    // goes to kOut, so that the progress line can be kept below all other lines.
    std::array<bool, 2> terminal = {false, false};
    size_t columns =
        80;  // of the terminal; a longer progress line is cut, or it could not be redrawn
  };

  explicit OutputMerger(const Options& options) : options_(options) {}

  static std::string prefix(uint32_t rank);

  // What `rank` printed.
  void feed(uint32_t rank, Stream stream, std::string_view bytes);
  // `rank` prints no more there: a line without its end is shown now.
  void finish(uint32_t rank, Stream stream);
  // A line of the launcher itself, on kErr.
  void say(std::string_view line);

  // What is to be written; the caller erases what he wrote.
  std::string& pending(Stream stream) { return pending_[static_cast<size_t>(stream)]; }

 private:
  struct Line {
    std::string text;
    bool returned = false;  // after a carriage return: the next character starts the line anew
    bool redrawn = false;   // a carriage return came since the last end of line: a progress line
  };
  using Source = std::pair<uint32_t, Stream>;
  struct Progress {
    Source source;
    std::string shown;
  };

  Stream sink(Stream stream) const;
  void write_line(Stream stream, std::string_view prefix, std::string_view text);
  void end_line(const Source& source, Line& line);
  void show_progress(const Source& source, const Line& line);

  const Options options_;
  std::array<std::string, 2> pending_;
  std::map<Source, Line> lines_;
  std::optional<Progress> progress_;  // at the bottom of the terminal
};

}  // namespace weft::launch
