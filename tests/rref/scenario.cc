#include "weft/tests/rref/scenario.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace weft::rref_internal {
namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line.substr(0, line.find('#')));
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

}  // namespace

std::vector<ScenarioBlock> parse_scenario(const std::string& text) {
  std::vector<ScenarioBlock> blocks;
  std::istringstream in(text);
  std::string* log = nullptr;
  bool open = false;
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) {
      open = false;
      log = nullptr;
      continue;
    }
    if (!open) {
      blocks.emplace_back();
      open = true;
    }
    if (line == "----") {
      log = &blocks.back().expected;
    } else if (line.starts_with("---- ")) {
      log = &blocks.back().other[line.substr(5)];
    } else if (log != nullptr) {
      *log += line + "\n";
    } else {
      blocks.back().lines.push_back(line);
    }
  }
  return blocks;
}

std::string print_scenario(const std::vector<ScenarioBlock>& blocks) {
  std::string text;
  for (const ScenarioBlock& block : blocks) {
    if (!text.empty()) text += "\n";
    for (const std::string& line : block.lines) text += line + "\n";
    if (!block.expected.empty()) text += "----\n" + block.expected;
    for (const auto& [target, log] : block.other) text += "---- " + target + "\n" + log;
  }
  return text;
}

std::string run_scenario(const std::string& path, ScenarioTarget& target) {
  std::ifstream in(path);
  std::stringstream content;
  content << in.rdbuf();
  std::vector<ScenarioBlock> blocks = parse_scenario(content.str());
  if (blocks.empty()) return path + ": no scenario";

  const bool rewrite = std::getenv("WEFT_REWRITE") != nullptr;
  const std::string self(target.kind());
  std::string problems;
  for (ScenarioBlock& block : blocks) {
    std::string log;
    for (const std::string& line : block.lines) {
      std::vector<std::string> words = words_of(line);
      if (words.empty()) continue;
      if (words[0].ends_with(':')) {
        if (words[0] != self + ":") continue;
        words.erase(words.begin());
      }
      const std::string result = target.execute(words);
      if (result.starts_with("error:") || result.starts_with("WRONG")) {
        problems += path + ": " + line + "\n  " + result;
      }
      log += result;
    }
    const auto other = block.other.find(self);
    const bool as_expected = other != block.other.end() ? target.accepts(other->second, log)
                                                        : target.accepts(block.expected, log);
    if (rewrite) {
      if (self == "core") {
        block.expected = log;
      } else if (target.accepts(block.expected, log)) {
        block.other.erase(self);
      } else {
        block.other[self] = log;
      }
    } else if (!as_expected) {
      problems += path + ": after\n";
      for (const std::string& line : block.lines) problems += "  " + line + "\n";
      problems += "expected\n" + (other != block.other.end() ? other->second : block.expected) +
                  "but got\n" + log;
    }
  }
  if (rewrite) std::ofstream(path) << print_scenario(blocks);
  return problems;
}

std::vector<std::string> scenario_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace weft::rref_internal
