// Makes glibc's malloc keep freed memory for the next allocation.
//
// Thread safety: may be called from any thread.
#pragma once

namespace weft {

// Changes malloc for the whole process:
// * It keeps freed memory: up to 2 GiB at the end of the main heap, in blocks of up to 32 MiB.
//   Training frees and allocates the same large tensors in every step, and each new page costs a
//   page fault. (glibc still returns the heaps of other arenas, in pieces of 64 MiB.)
// * Threads share arenas, one arena for two processors. Otherwise the thread of one handler does
//   not find the memory that the thread of another one freed. (Then the forwards of a pipeline
//   stage took three times as long.)
// Call it before most threads exist. Only the first call has an effect. The environment variables
// MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_ and MALLOC_ARENA_MAX take precedence.
void keep_freed_memory();

}  // namespace weft
