// Measures several variants of one contestant, and gives the blocks of the one that is faster.
//
// Which variant is faster is decided row by row, by the median of its blocks so far. So a single
// lucky block does not count. Each variant runs for its part of the block's time.
//
// Thread safety, blocking and errors: those of Group. A variant that spins is paused outside its
// own part of a block. So it has no row that measures what happens after a pause.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/bench/processes/group.h"

namespace weft::bench {

class BestOf final : public Group {
 public:
  // At least one variant.
  BestOf(std::string name, std::vector<std::unique_ptr<Group>> variants);

  const std::string& name() const override { return name_; }
  // False: it pauses its variants itself.
  bool spins_when_idle() const override { return false; }
  absl::Status start() override;
  void pause() override;
  void resume() override;
  // Unimplemented: no variant has this row.
  absl::StatusOr<BlockResult> run(const Row& row, double seconds) override;

 private:
  // The values of all blocks of a variant in one row.
  using Values = std::vector<double>;

  const std::string name_;
  std::vector<std::unique_ptr<Group>> variants_;
  std::map<std::string, std::vector<Values>> values_;  // by row, then by variant
};

}  // namespace weft::bench
