// Where the parts of one protobuf message lie while it is written or read: on the stack, unless it
// is large. A message of ten parts costs no allocation then instead of ten.
//
// Thread safety: none, a local variable.
#pragma once

#include <google/protobuf/arena.h>

namespace weft::dist_autograd_internal {

class MessageMemory {
 public:
  MessageMemory() : arena_(options()) {}

  // Lives as long as this object.
  template <class Message>
  Message* make() {
    return google::protobuf::Arena::CreateMessage<Message>(&arena_);
  }

 private:
  google::protobuf::ArenaOptions options() {
    google::protobuf::ArenaOptions options;
    options.initial_block = block_;
    options.initial_block_size = sizeof(block_);
    return options;
  }

  alignas(8) char block_[2048];
  google::protobuf::Arena arena_;
};

}  // namespace weft::dist_autograd_internal
