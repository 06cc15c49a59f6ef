// Merges the output of many processes into whole lines that carry the rank: "[2] loss 0.31".
//
// A progress line is a line that a process redraws with carriage returns. On a terminal it stays at
// the bottom, and finished lines pass above it. Only its last state goes into a file.
//
// Pure: bytes in, bytes out.
// Thread safety: none; one thread drives it.
// Bounds: a line longer than kMaxLine is cut into several. The caller limits what is pending: it
// feeds nothing while too much is.
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
    // For each stream, whether it is a terminal. If both are, they are taken for the same terminal,
    // and all output goes to kOut. So the progress line can stay below all other lines.
    std::array<bool, 2> terminal = {false, false};
    size_t columns =
        80;  // of the terminal; a longer progress line is cut, or it could not be redrawn
  };

  explicit OutputMerger(const Options& options) : options_(options) {}

  static std::string prefix(uint32_t rank);

  // `rank` has printed `bytes`.
  void feed(uint32_t rank, Stream stream, std::string_view bytes);
  // `rank` prints nothing more there. A line without a newline is shown now.
  void finish(uint32_t rank, Stream stream);
  // Writes a line of the launcher itself, to kErr.
  void say(std::string_view line);

  // The bytes to be written. The caller erases the bytes that it has written.
  std::string& pending(Stream stream) { return pending_[static_cast<size_t>(stream)]; }

 private:
  struct Line {
    std::string text;
    bool returned = false;  // after a carriage return: the next character begins the line anew
    bool redrawn = false;   // a progress line: a carriage return came since the last newline
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
