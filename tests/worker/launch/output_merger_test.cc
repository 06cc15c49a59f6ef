#include "weft/worker/launch/output_merger.h"

#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace weft::launch {
namespace {

constexpr char kClear[] = "\r\x1b[K";

OutputMerger::Options terminal(size_t columns = 80) {
  OutputMerger::Options options;
  options.terminal = {true, true};
  options.columns = columns;
  return options;
}

std::string take(OutputMerger& merger, Stream stream = Stream::kOut) {
  return std::exchange(merger.pending(stream), "");
}

TEST(OutputMerger, NamesTheRankOfEachLineAndKeepsTheStreamsApart) {
  OutputMerger merger({});
  merger.feed(0, Stream::kOut, "one\ntwo\n");
  merger.feed(12, Stream::kErr, "three\n");
  EXPECT_EQ(take(merger), "[0] one\n[0] two\n");
  EXPECT_EQ(take(merger, Stream::kErr), "[12] three\n");
}

TEST(OutputMerger, NeverMixesTwoRanksInOneLine) {
  OutputMerger merger({});
  merger.feed(0, Stream::kOut, "first ");
  merger.feed(1, Stream::kOut, "second\n");
  merger.feed(0, Stream::kErr, "third\n");
  merger.feed(0, Stream::kOut, "half\n");
  EXPECT_EQ(take(merger), "[1] second\n[0] first half\n");
  EXPECT_EQ(take(merger, Stream::kErr), "[0] third\n");
}

TEST(OutputMerger, ShowsALastLineWithoutItsEnd) {
  OutputMerger merger({});
  merger.feed(0, Stream::kOut, "no end");
  EXPECT_EQ(take(merger), "");
  merger.finish(0, Stream::kOut);
  EXPECT_EQ(take(merger), "[0] no end\n");
  merger.finish(0, Stream::kOut);
  EXPECT_EQ(take(merger), "");
}

TEST(OutputMerger, KeepsEmptyLinesAndCrLfEnds) {
  OutputMerger merger({});
  merger.feed(0, Stream::kOut, "\n\na\r\nb\r");
  merger.feed(0, Stream::kOut, "\nc\n");
  EXPECT_EQ(take(merger), "[0] \n[0] \n[0] a\n[0] b\n[0] c\n");
}

TEST(OutputMerger, AFileGetsTheLastStateOfAProgressLineOnly) {
  OutputMerger merger({});
  merger.feed(0, Stream::kOut, "10%\r20%");
  merger.feed(0, Stream::kOut, "\r100%");
  EXPECT_EQ(take(merger), "");
  merger.feed(0, Stream::kOut, "\ndone\n");
  EXPECT_EQ(take(merger), "[0] 100%\n[0] done\n");
}

TEST(OutputMerger, ATerminalShowsAProgressLineAtOnceAndRedrawsIt) {
  OutputMerger merger(terminal());
  merger.feed(0, Stream::kOut, "\r10%");
  EXPECT_EQ(take(merger), std::string(kClear) + "[0] 10%");
  merger.feed(0, Stream::kOut, "\r20%");
  EXPECT_EQ(take(merger), std::string(kClear) + "[0] 20%");
  merger.feed(0, Stream::kOut, "\n");
  EXPECT_EQ(take(merger), std::string(kClear) + "[0] 20%\n");
}

TEST(OutputMerger, BarsThatEndInACarriageReturnAreShownToo) {
  OutputMerger merger(terminal());
  merger.feed(0, Stream::kErr, "10%\r");
  EXPECT_EQ(take(merger), std::string(kClear) + "[0] 10%");
}

TEST(OutputMerger, LinesPassAboveTheProgressLine) {
  OutputMerger merger(terminal());
  merger.feed(1, Stream::kErr, "\r10%");
  take(merger);
  merger.feed(0, Stream::kOut, "a line\n");
  EXPECT_EQ(take(merger), std::string(kClear) + "[0] a line\n[1] 10%");
  merger.say("weft_launch: news");
  EXPECT_EQ(take(merger), std::string(kClear) + "weft_launch: news\n[1] 10%");
  EXPECT_EQ(take(merger, Stream::kErr), "") << "both streams are one terminal";
}

TEST(OutputMerger, TheLatestProgressOfTwoRanksIsShown) {
  OutputMerger merger(terminal());
  merger.feed(0, Stream::kOut, "\ra");
  merger.feed(1, Stream::kOut, "\rb");
  EXPECT_EQ(take(merger), std::string(kClear) + "[0] a" + kClear + "[1] b");
  merger.feed(0, Stream::kOut, "\n");
  EXPECT_EQ(take(merger), std::string(kClear) + "[0] a\n[1] b");
}

TEST(OutputMerger, AProgressLineIsCutToTheTerminal) {
  OutputMerger merger(terminal(10));
  merger.feed(0, Stream::kOut, "\r\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4");
  EXPECT_EQ(take(merger), std::string(kClear) + "[0] \xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4");
}

TEST(OutputMerger, AFileBesideATerminalIsNotDrawnOn) {
  OutputMerger::Options options;
  options.terminal = {false, true};
  OutputMerger merger(options);
  merger.feed(0, Stream::kErr, "\r10%");
  EXPECT_EQ(take(merger, Stream::kErr), std::string(kClear) + "[0] 10%");
  merger.feed(0, Stream::kOut, "a line\n");
  EXPECT_EQ(take(merger), "[0] a line\n");
  EXPECT_EQ(take(merger, Stream::kErr), "");
}

TEST(OutputMerger, ALineWithoutEndIsCutAndNotKept) {
  OutputMerger merger({});
  merger.feed(0, Stream::kOut, std::string(OutputMerger::kMaxLine + 3, 'x'));
  EXPECT_EQ(take(merger), "[0] " + std::string(OutputMerger::kMaxLine, 'x') + "\n");
  merger.feed(0, Stream::kOut, "\n");
  EXPECT_EQ(take(merger), "[0] xxx\n");
}

}  // namespace
}  // namespace weft::launch
