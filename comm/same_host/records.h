// Makes and checks records: what a rank tells the other ranks of its contribution to an operation.
//
// Thread safety: free functions. The caller has waited for the counters that publish a record.
// Errors: InvalidArgument (ranks called different operations), Internal (a damaged record).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "weft/comm/same_host/control_block.h"
#include "weft/comm/same_host/operation.h"

namespace weft::comm_internal {

// Writes all fields of the record. DataLocation::kSlot stands for data that fits into a slot.
void describe(const Operation& operation, uint64_t number, Record& record);

// "all_reduce(sum, float32) of shape [3, 4]". Another process wrote the record, so it may contain
// anything.
std::string label_of(const Record& record);

struct RecordRules {
  bool equal_bytes = false;  // all contributions must have the same size
  bool arenas = false;       // this rank can map the arenas of the others
};
// Checks that the records of all ranks describe the operation of `rank`, and that each is valid.
absl::Status check_records(std::span<const Record> records, int rank, const RecordRules& rules);

}  // namespace weft::comm_internal
