#include "weft/worker/launch/output_merger.h"

#include "absl/strings/str_cat.h"

namespace weft::launch {
namespace {

constexpr char kClearLine[] = "\r\x1b[K";

// The first `columns` characters. A UTF-8 character counts as one column, and so does each
// character of an escape sequence.
std::string_view cut(std::string_view text, size_t columns) {
  size_t used = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool continues = (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;
    if (!continues && used++ == columns) return text.substr(0, i);
  }
  return text;
}

}  // namespace

std::string OutputMerger::prefix(uint32_t rank) { return absl::StrCat("[", rank, "] "); }

void OutputMerger::feed(uint32_t rank, Stream stream, std::string_view bytes) {
  const Source source(rank, stream);
  Line& line = lines_[source];
  for (const char c : bytes) {
    if (c == '\n') {
      end_line(source, line);
    } else if (c == '\r') {
      line.returned = true;
      line.redrawn = true;
    } else {
      if (line.returned) line.text.clear();
      line.returned = false;
      line.text.push_back(c);
      if (line.text.size() >= kMaxLine) end_line(source, line);
    }
  }
  if (line.redrawn && !line.text.empty()) show_progress(source, line);
}

void OutputMerger::finish(uint32_t rank, Stream stream) {
  const Source source(rank, stream);
  auto found = lines_.find(source);
  if (found == lines_.end()) return;
  if (!found->second.text.empty()) end_line(source, found->second);
  lines_.erase(found);
}

void OutputMerger::say(std::string_view line) { write_line(Stream::kErr, "", line); }

Stream OutputMerger::sink(Stream stream) const {
  return options_.terminal[0] && options_.terminal[1] ? Stream::kOut : stream;
}

void OutputMerger::end_line(const Source& source, Line& line) {
  if (progress_ && progress_->source == source) {
    pending(sink(source.second)) += kClearLine;
    progress_.reset();
  }
  write_line(source.second, prefix(source.first), line.text);
  line = Line();
}

void OutputMerger::write_line(Stream stream, std::string_view prefix, std::string_view text) {
  std::string& out = pending(sink(stream));
  // If only one of the streams is a terminal, they do not share a screen.
  const bool same_screen = progress_ && sink(progress_->source.second) == sink(stream);
  if (same_screen) out += kClearLine;
  out.append(prefix).append(text).push_back('\n');
  if (same_screen) out += progress_->shown;
}

void OutputMerger::show_progress(const Source& source, const Line& line) {
  const Stream to = sink(source.second);
  if (!options_.terminal[static_cast<size_t>(to)]) return;
  // One column stays free, because a full line makes some terminals wrap.
  const size_t columns = options_.columns > 1 ? options_.columns - 1 : 1;
  const std::string full = prefix(source.first) + line.text;
  std::string shown(cut(full, columns));
  if (progress_ && progress_->source == source && progress_->shown == shown) return;
  pending(to).append(kClearLine).append(shown);
  progress_ = Progress{source, std::move(shown)};
}

}  // namespace weft::launch
