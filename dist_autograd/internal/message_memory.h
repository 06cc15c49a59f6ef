// Allocates the parts of one protobuf message on the stack, unless the message is large.
//
// A message of ten parts then needs no heap allocation instead of ten. The first 2 KiB are on the
// stack.
//
// Thread safety: none; use it as a local variable.
#pragma once

#include <google/protobuf/arena.h>

namespace weft::dist_autograd_internal {

class MessageMemory {
 public:
  MessageMemory() : arena_(options()) {}

  // The message lives as long as this object.
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
