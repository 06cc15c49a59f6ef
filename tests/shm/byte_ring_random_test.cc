// Random schedules of a ring: in one thread, between two threads, and against a hostile peer.
#include <algorithm>
#include <atomic>
#include <deque>
#include <random>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "weft/shm/byte_ring.h"
#include "weft/tests/shm/hostile_peer.h"
#include "weft/tests/shm/ring_ends.h"

namespace weft {
namespace {

using namespace ring_test;

size_t random_size(std::mt19937_64& random, size_t largest) {
  return random() % 8 == 0 ? random() % (largest + 1) : random() % 40;
}

TEST(ByteRingRandomTest, BehavesLikeAQueue) {
  const uint64_t seed = random_test_seed();
  SCOPED_TRACE(::testing::Message() << "WEFT_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    SharedRing ring(size_t{256} << random() % 5);
    Ends ends(ring);
    std::deque<std::pair<size_t, uint64_t>> queue;  // size and number of what is not read
    size_t reserved = 0;                            // of these, not published
    uint64_t number = 0;
    bool waits = false;  // the writer asked for space and was not woken yet
    const auto read_one = [&] {
      if (queue.size() == reserved) return expect_nothing(ends.reader);
      expect_next(ends.reader, queue.front().first, queue.front().second);
      queue.pop_front();
    };
    const auto release = [&] {
      if (ends.reader.release()) {
        EXPECT_TRUE(waits);
        waits = false;
      }
    };
    for (int i = 0; i < 500 && !::testing::Test::HasFailure(); ++i) {
      switch (random() % 6) {
        case 0:
        case 1:
          if (const size_t size = random_size(random, ends.writer.largest());
              !waits && reserve(ends.writer, size, number)) {
            queue.emplace_back(size, number++);
            ++reserved;
          }
          break;
        case 2:
          EXPECT_EQ(ends.writer.commit(), reserved != 0);
          reserved = 0;
          break;
        case 3:
          read_one();
          break;
        case 4:
          release();
          break;
        case 5:
          if (reserved == 0 && !waits) waits = asks(ends.writer);
          break;
      }
    }
    ends.writer.commit();
    reserved = 0;
    while (!queue.empty() && !::testing::Test::HasFailure()) read_one();
    release();
    EXPECT_FALSE(waits) << "the writer waits for ever";
    EXPECT_TRUE(write(ends.writer, ends.writer.largest(), number)) << "an empty ring has no room";
  }
}

TEST(ByteRingRandomTest, CarriesRecordsBetweenTwoThreads) {
  constexpr uint64_t kRecords = 20'000;
  SharedRing ring(1024);
  const auto size_of = [](uint64_t number) { return number * number % 241; };
  std::atomic<bool> woken{false};  // stands for a signal to the writer
  std::atomic<bool> over{false};
  std::thread other([&] {
    RingWriter writer(*ring.header, ring.data());
    for (uint64_t number = 0; number < kRecords && !over;) {
      if (reserve(writer, size_of(number), number)) {
        if (++number % 2 == 0) writer.commit();
        continue;
      }
      writer.commit();
      if (!asks(writer)) continue;
      while (!woken.exchange(false) && !over) std::this_thread::yield();
    }
    writer.commit();
  });
  RingReader reader(*ring.header, ring.data(), kLastKind);
  for (uint64_t number = 0; number < kRecords && !::testing::Test::HasFailure();) {
    const auto record = reader.next();
    EXPECT_TRUE(record.ok()) << record.status();
    if (!record.ok()) break;
    if (record->has_value()) {
      EXPECT_EQ((*record)->kind, 1 + number % kLastKind);
      EXPECT_EQ((*record)->content.size(), size_of(number));
      expect_filled((*record)->content, number);
      if (++number % 3 != 0) continue;
    }
    if (reader.release()) woken = true;
    if (!record->has_value()) std::this_thread::yield();
  }
  over = true;
  other.join();
}

// ---- A hostile peer

void store_byte(std::byte* at, uint8_t value) {
  __atomic_store_n(reinterpret_cast<uint8_t*>(at), value, __ATOMIC_RELAXED);
}

// Overwrites something in the header or in the data, often with a value near the true one.
void corrupt(SharedRing& ring, std::mt19937_64& random) {
  switch (random() % 8) {
    case 0: {
      std::byte* const header = reinterpret_cast<std::byte*>(ring.header.get());
      store_byte(header + random() % sizeof(RingHeader), static_cast<uint8_t>(random()));
      break;
    }
    case 1:
      ring.header->tail += 16 * (random() % 64) - 256;
      break;
    case 2:
      ring.header->head += 16 * (random() % 64) - 256;
      break;
    case 3:
      ring.header->wants_space = static_cast<uint32_t>(random());
      break;
    case 4: {  // the size or the kind of what may be a record
      std::byte* const record = ring.bytes.get() + random() % (ring.size / 16) * 16;
      store_byte(record + random() % 6, static_cast<uint8_t>(random()));
      break;
    }
    default:
      for (size_t i = random() % 16; i < 16; ++i) {
        store_byte(ring.bytes.get() + random() % ring.size, static_cast<uint8_t>(random()));
      }
  }
}

// One step of an honest user of either end. False: the end has refused the peer.
bool write_something(RingWriter& writer, std::mt19937_64& random) {
  const size_t size = random_size(random, writer.largest());
  const auto room = writer.reserve(1, size);
  if (!room.ok()) return false;
  if (room->has_value()) {
    EXPECT_EQ((*room)->size(), size);
    std::fill((*room)->begin(), (*room)->end(), std::byte{1});
    if (random() % 2 == 0) writer.commit();
    return true;
  }
  writer.commit();
  return writer.request_space().ok();
}
bool read_something(RingReader& reader, size_t ring_bytes, std::mt19937_64& random) {
  static std::byte sum{0};
  const auto record = reader.next();
  if (!record.ok()) return false;
  if (record->has_value()) {
    EXPECT_LE((*record)->content.size(), largest_in_ring(ring_bytes));
    EXPECT_GE((*record)->kind, 1);
    EXPECT_LE((*record)->kind, kLastKind);
    for (const std::byte byte : (*record)->content) sum ^= byte;
  }
  if (random() % 2 == 0) reader.release();
  return true;
}

TEST(ByteRingRandomTest, NoCorruptionHarmsAnybody) {
  const uint64_t seed = random_test_seed();
  SCOPED_TRACE(::testing::Message() << "WEFT_SEED=" << seed);
  std::mt19937_64 random(seed);
  const uint64_t corruptions = corruptions_to_try();
  uint64_t refusals = 0;
  for (uint64_t done = 0; done < corruptions && !::testing::Test::HasFailure();) {
    SharedRing ring(size_t{256} << random() % 3);
    Ends ends(ring);
    bool writes = true;
    bool reads = true;
    for (int i = 0; (writes || reads) && i < 200; ++i) {
      if (writes && random() % 2 == 0) writes = write_something(ends.writer, random);
      if (reads && random() % 2 == 0) reads = read_something(ends.reader, ring.size, random);
      if (random() % 8 == 0) {
        corrupt(ring, random);
        ++done;
      }
    }
    // The peer can publish no more than the ring holds, so this loop ends.
    size_t left = 0;
    while (reads) {
      const auto record = ends.reader.next();
      if (!record.ok() || !record->has_value()) break;
      ASSERT_LE(++left, ring.size / 16);
    }
    refusals += writes ? 0 : 1;
    refusals += reads ? 0 : 1;
  }
  EXPECT_GT(refusals, 0u);
}

TEST(ByteRingRandomTest, NoCorruptionInTheMiddleOfACallHarmsAnybody) {
  if (WEFT_TEST_TSAN) GTEST_SKIP() << "ThreadSanitizer reports each race with the hostile thread";
  const uint64_t seed = random_test_seed();
  SCOPED_TRACE(::testing::Message() << "WEFT_SEED=" << seed);
  const uint64_t corruptions = 10 * corruptions_to_try();
  SharedRing ring(1024);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> changes{0};
  std::thread hostile([&] {
    std::mt19937_64 random(seed);
    while (!stop) {
      // Mostly what a record holds, so that the ends get further than their first look.
      if (random() % 64 != 0) {
        store_byte(ring.bytes.get() + random() % ring.size, static_cast<uint8_t>(random() % 64));
      } else {
        corrupt(ring, random);
      }
      if (++changes % 512 == 0) std::this_thread::yield();
    }
  });
  std::mt19937_64 random(seed + 1);
  while (changes < corruptions && !::testing::Test::HasFailure()) {
    ring.header->tail = 0;
    ring.header->head = 0;
    Ends ends(ring);
    bool writes = true;
    bool reads = true;
    for (int i = 0; (writes || reads) && i < 2'000; ++i) {
      if (writes) writes = write_something(ends.writer, random);
      if (reads) reads = read_something(ends.reader, ring.size, random);
    }
    std::this_thread::yield();  // on one processor the hostile thread must have its turn
  }
  stop = true;
  hostile.join();
}

}  // namespace
}  // namespace weft
