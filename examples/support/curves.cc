#include "weft/examples/support/curves.h"

#include <cmath>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "weft/base/status.h"
#include "weft/checkpoint/atomic_file.h"
#include "weft/examples/support/curve_picture.h"

namespace weft::examples {
namespace {

constexpr const char* kHeader = "step,epoch,loss,accuracy,seconds";

std::string optional_text(const std::optional<double>& value) {
  return value ? absl::StrFormat("%.6g", *value) : "";
}

bool parse_optional(absl::string_view text, std::optional<double>* value) {
  if (text.empty()) return true;
  double number = 0;
  if (!absl::SimpleAtod(text, &number)) return false;
  *value = number;
  return true;
}

std::optional<CurvePoint> parse_line(const std::string& line) {
  const std::vector<absl::string_view> cells = absl::StrSplit(line, ',');
  CurvePoint point;
  if (cells.size() != 5 || !absl::SimpleAtoi(cells[0], &point.step) ||
      !absl::SimpleAtod(cells[1], &point.epoch) || !parse_optional(cells[2], &point.loss) ||
      !parse_optional(cells[3], &point.accuracy) || !absl::SimpleAtod(cells[4], &point.seconds)) {
    return std::nullopt;
  }
  return point;
}

}  // namespace

absl::Status Curves::write_csv(const std::string& path) const {
  std::string text = absl::StrCat(kHeader, "\n");
  for (const CurvePoint& point : points_) {
    absl::StrAppendFormat(&text, "%d,%.6g,%s,%s,%.6g\n", point.step, point.epoch,
                          optional_text(point.loss), optional_text(point.accuracy), point.seconds);
  }
  return write_file_atomically(path, text);
}

absl::Status Curves::write_png(const std::string& path) const {
  WEFT_ASSIGN_OR_RETURN(const std::string picture, draw_curves(title_, points_));
  return write_file_atomically(path, picture);
}

absl::Status Curves::read_csv(const std::string& path, int64_t last_step) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  std::string line;
  if (!std::getline(file, line) || line != kHeader) {
    return absl::DataLossError(absl::StrCat(path, ", line 1: not '", kHeader, "'"));
  }
  std::vector<CurvePoint> points;
  for (int number = 2; std::getline(file, line); ++number) {
    const std::optional<CurvePoint> point = parse_line(line);
    if (!point) {
      return absl::DataLossError(absl::StrCat(path, ", line ", number, ": not five numbers"));
    }
    if (point->step <= last_step) points.push_back(*point);
  }
  points_ = std::move(points);
  return absl::OkStatus();
}

}  // namespace weft::examples
