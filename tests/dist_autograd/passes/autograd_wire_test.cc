#include "weft/dist_autograd/passes/autograd_wire.h"

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "weft/base/status.h"

namespace weft::dist_autograd_internal {
namespace {

constexpr WorkerId kSender{0, 3}, kReceiver{1, 1};
constexpr ContextId kSentContext{kSender, 7};
const PassId kPass{kSentContext, kSender, 2};

PassHeader header() {
  return {.pass = kPass,
          .mode = BackwardMode::kEager,
          .retain_graph = true,
          .budget = absl::Milliseconds(1500),
          .histories = {{kSender, 5, 2, {3, 5}}, {kReceiver, 1, 1, {}}}};
}

std::vector<PassReport> reports() {
  return {{.counts = {.worker = kReceiver,
                      .version = 4,
                      .sent = {{kSender, 2}},
                      .received = {{kSender, 9}, {kReceiver, 1}}},
           .waiting = true,
           .unfed = {{kReceiver, 12}}}};
}

PassFailure failure() {
  return {.status = raised_at(with_ran(absl::UnknownError("boom"), Ran::kYes), "worker1"),
          .worker = kReceiver,
          .died = kSender,
          .node = "MulBackward0",
          .call = {kReceiver, 3}};
}

GradMessage grad() {
  GradMessage message{.header = header(), .number = 8, .reports = reports()};
  message.entries.push_back({.send = {kReceiver, 1}, .slots = 3, .present = {0, 2}});
  message.entries.push_back({.send = {kReceiver, 2}, .slots = 1});
  return message;
}

std::vector<AutogradMessage> one_of_each() {
  std::vector<AutogradMessage> all;
  all.push_back(grad());
  all.push_back(ActivateMessage{header(), 1, {{kReceiver, 4}, {kReceiver, 5}}, reports()});
  all.push_back(SealMessage{kPass, 6});
  all.push_back(ReportMessage{kPass, reports()});
  all.push_back(PublishMessage{kPass, header().histories});
  all.push_back(FailMessage{kPass, failure()});
  all.push_back(AbortMessage{kPass, failure()});
  all.push_back(ReleaseContextMessage{kSentContext, 6});
  all.push_back(HoldsContextMessage{kSentContext});
  return all;
}

wire::AutogradPost written(const AutogradMessage& message) {
  wire::AutogradPost post;
  to_wire(message, post);
  return post;
}

TEST(AutogradWire, EveryMessageComesBackAsItWasSent) {
  for (const AutogradMessage& message : one_of_each()) {
    wire::AutogradPost parsed;
    ASSERT_TRUE(parsed.ParseFromString(written(message).SerializeAsString()));
    const auto read = from_wire(parsed);
    ASSERT_TRUE(read.ok()) << kind_of(message) << ": " << read.status();
    EXPECT_EQ(kind_of(*read), kind_of(message));
    // Written again, the message is the same in every field.
    EXPECT_EQ(written(*read).SerializeAsString(), parsed.SerializeAsString()) << kind_of(message);
  }
}

TEST(AutogradWire, FieldsKeepTheirMeaning) {
  const auto read = from_wire(written(grad()));
  ASSERT_TRUE(read.ok());
  const auto& message = std::get<GradMessage>(*read);
  EXPECT_EQ(message.header.pass, kPass);
  EXPECT_EQ(message.header.mode, BackwardMode::kEager);
  EXPECT_TRUE(message.header.retain_graph);
  EXPECT_EQ(message.header.budget, absl::Milliseconds(1500));
  EXPECT_EQ(message.header.histories, header().histories);
  EXPECT_EQ(message.number, 8u);
  EXPECT_EQ(message.entries[0].present, (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(message.entries[0].gradients, nullptr);
  EXPECT_EQ(message.reports[0].counts, reports()[0].counts);
  EXPECT_TRUE(message.reports[0].waiting);
  EXPECT_EQ(tensors_expected(*read), 2u);

  const auto failed = from_wire(written(FailMessage{kPass, failure()}));
  ASSERT_TRUE(failed.ok());
  const PassFailure& reason = std::get<FailMessage>(*failed).failure;
  EXPECT_EQ(reason.status.code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(reason.status.message(), "boom");
  EXPECT_EQ(ran_of(reason.status), Ran::kYes);
  EXPECT_EQ(worker_of(reason.status), "worker1");
  EXPECT_EQ(reason.worker, kReceiver);
  EXPECT_EQ(reason.died, kSender);
  EXPECT_EQ(reason.node, "MulBackward0");
}

TEST(AutogradWire, BudgetsKeepTheDifferenceBetweenNoneAndUnlimited) {
  GradMessage message = grad();
  message.header.budget = absl::InfiniteDuration();
  auto read = from_wire(written(std::move(message)));
  EXPECT_EQ(std::get<GradMessage>(*read).header.budget, absl::InfiniteDuration());
  message = grad();
  message.header.budget = -absl::Seconds(1);
  read = from_wire(written(std::move(message)));
  EXPECT_EQ(std::get<GradMessage>(*read).header.budget, absl::Microseconds(1));
}

TEST(AutogradWire, MetadataComesBackAndIsChecked) {
  wire::AutogradMetadata post;
  to_wire({.context = kSentContext,
           .send = {kReceiver, 2},
           .requires_grad = {0, 3},
           .histories = header().histories},
          post);
  const auto read = from_wire(post, 4);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->context, kSentContext);
  EXPECT_EQ(read->send, (SendId{kReceiver, 2}));
  EXPECT_EQ(read->requires_grad, (std::vector<uint32_t>{0, 3}));
  EXPECT_EQ(read->histories, header().histories);
  EXPECT_FALSE(from_wire(post, 3).ok()) << "tensor 3 of 3";
  wire::AutogradMetadata no_send = post;
  no_send.clear_send();
  EXPECT_FALSE(from_wire(no_send, 4).ok());
  wire::AutogradMetadata no_tensor = post;
  no_tensor.clear_requires_grad();
  EXPECT_FALSE(from_wire(no_tensor, 4).ok());
  wire::AutogradMetadata no_context = post;
  no_context.clear_context();
  EXPECT_FALSE(from_wire(no_context, 4).ok());
}

TEST(AutogradWire, WhatBreaksARuleIsRefused) {
  using Post = wire::AutogradPost;
  struct Case {
    const char* what;
    size_t message;  // an index into one_of_each
    std::function<void(Post&)> damage;
  };
  const std::vector<Case> cases = {
      {"no kind", 0, [](Post& p) { p.Clear(); }},
      {"no header", 0, [](Post& p) { p.mutable_grad()->clear_header(); }},
      {"no pass", 0, [](Post& p) { p.mutable_grad()->mutable_header()->clear_pass(); }},
      {"no context", 2, [](Post& p) { p.mutable_seal()->mutable_pass()->clear_context(); }},
      {"no initiator", 2, [](Post& p) { p.mutable_seal()->mutable_pass()->set_initiator(0); }},
      {"incarnation 0", 2,
       [](Post& p) { p.mutable_seal()->mutable_pass()->set_initiator(uint64_t{5} << 32); }},
      {"pass 0", 2, [](Post& p) { p.mutable_seal()->mutable_pass()->set_k(0); }},
      {"context number 0", 2,
       [](Post& p) { p.mutable_seal()->mutable_pass()->mutable_context()->set_number(0); }},
      {"unnumbered grad", 0, [](Post& p) { p.mutable_grad()->set_number(0); }},
      {"unnumbered activate", 1, [](Post& p) { p.mutable_activate()->set_number(0); }},
      {"unnumbered seal", 2, [](Post& p) { p.mutable_seal()->set_number(0); }},
      {"unknown mode", 0,
       [](Post& p) {
         p.mutable_grad()->mutable_header()->set_mode(static_cast<wire::BackwardMode>(3));
       }},
      {"huge budget", 0,
       [](Post& p) { p.mutable_grad()->mutable_header()->set_budget_us(~uint64_t{0}); }},
      {"entry without send", 0,
       [](Post& p) { p.mutable_grad()->mutable_entries(0)->clear_send(); }},
      {"no slots", 0, [](Post& p) { p.mutable_grad()->mutable_entries(1)->set_slots(0); }},
      {"too many slots", 0,
       [](Post& p) { p.mutable_grad()->mutable_entries(0)->set_slots(kMaxWireList + 1); }},
      {"slot out of range", 0,
       [](Post& p) { p.mutable_grad()->mutable_entries(0)->set_present(1, 3); }},
      {"slot twice", 0, [](Post& p) { p.mutable_grad()->mutable_entries(0)->set_present(1, 0); }},
      {"too many sends", 1,
       [](Post& p) {
         for (int i = 0; i < kMaxWireList; ++i) {
           *p.mutable_activate()->add_sends() = p.activate().sends(0);
         }
       }},
      {"activated nothing", 1,
       [](Post& p) { p.mutable_activate()->mutable_sends(0)->set_number(0); }},
      {"nobody's report", 3,
       [](Post& p) { p.mutable_report()->mutable_reports(0)->set_worker(0); }},
      {"report version 0", 3,
       [](Post& p) { p.mutable_report()->mutable_reports(0)->set_version(0); }},
      {"count 0", 3,
       [](Post& p) { p.mutable_report()->mutable_reports(0)->mutable_sent(0)->set_count(0); }},
      {"peers out of order", 3,
       [](Post& p) {
         p.mutable_report()->mutable_reports(0)->mutable_received()->SwapElements(0, 1);
       }},
      {"unfed nothing", 3,
       [](Post& p) { p.mutable_report()->mutable_reports(0)->mutable_unfed(0)->clear_creator(); }},
      {"history of nobody", 4,
       [](Post& p) { p.mutable_publish()->mutable_histories(0)->set_initiator(0); }},
      {"history of nothing", 4,
       [](Post& p) { p.mutable_publish()->mutable_histories(1)->set_decided(0); }},
      {"history without end", 4,
       [](Post& p) { p.mutable_publish()->mutable_histories(0)->set_decided(~uint64_t{0}); }},
      {"complete from 0", 4,
       [](Post& p) { p.mutable_publish()->mutable_histories(0)->set_complete_from(0); }},
      {"complete from the future", 4,
       [](Post& p) { p.mutable_publish()->mutable_histories(0)->set_complete_from(7); }},
      {"aborted before complete", 4,
       [](Post& p) { p.mutable_publish()->mutable_histories(0)->set_aborted(0, 1); }},
      {"aborted undecided", 4,
       [](Post& p) { p.mutable_publish()->mutable_histories(0)->set_aborted(1, 6); }},
      {"aborted out of order", 4,
       [](Post& p) { p.mutable_publish()->mutable_histories(0)->set_aborted(1, 3); }},
      {"no failure", 5, [](Post& p) { p.mutable_fail()->clear_failure(); }},
      {"an OK failure", 5,
       [](Post& p) { p.mutable_fail()->mutable_failure()->mutable_status()->set_code(0); }},
      {"status 17", 6,
       [](Post& p) { p.mutable_abort()->mutable_failure()->mutable_status()->set_code(17); }},
      {"ran 3", 6,
       [](Post& p) { p.mutable_abort()->mutable_failure()->mutable_status()->set_ran(3); }},
      {"failed nowhere", 6, [](Post& p) { p.mutable_abort()->mutable_failure()->set_worker(0); }},
      {"a dead nobody", 6,
       [](Post& p) { p.mutable_abort()->mutable_failure()->set_died(uint64_t{1} << 32); }},
      {"a call without number", 6,
       [](Post& p) { p.mutable_abort()->mutable_failure()->mutable_call()->set_number(0); }},
      {"release of nothing", 7, [](Post& p) { p.mutable_release()->clear_context(); }},
      {"holds nothing", 8, [](Post& p) { p.mutable_holds()->mutable_context()->clear_creator(); }},
  };
  const std::vector<AutogradMessage> all = one_of_each();
  for (const Case& one : cases) {
    Post post = written(all[one.message]);
    ASSERT_TRUE(from_wire(post).ok());
    one.damage(post);
    EXPECT_EQ(from_wire(post).status().code(), absl::StatusCode::kInvalidArgument) << one.what;
  }
}

TEST(AutogradWire, OnlyMessagesThatNobodyWaitsForMayRide) {
  for (const AutogradMessage& message : one_of_each()) {
    wire::AutogradPost post = written(SealMessage{kPass, 1});
    *post.add_piggybacked() = written(PublishMessage{kPass, header().histories});
    *post.add_piggybacked() = written(message);
    const auto piggybacked = piggybacked_from_wire(post);
    if (kind_of(message) == "PUBLISH" || kind_of(message) == "RELEASE_CONTEXT") {
      ASSERT_TRUE(piggybacked.ok()) << piggybacked.status();
      ASSERT_EQ(piggybacked->size(), 2u);
      EXPECT_EQ(kind_of(piggybacked->at(1)), kind_of(message));
    } else {
      EXPECT_EQ(piggybacked.status().code(), absl::StatusCode::kInvalidArgument)
          << kind_of(message);
    }
  }
  wire::AutogradPost nested = written(ReleaseContextMessage{kSentContext, 6});
  *nested.add_piggybacked() = nested;
  wire::AutogradPost post = written(SealMessage{kPass, 1});
  *post.add_piggybacked() = nested;
  EXPECT_EQ(piggybacked_from_wire(post).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(AutogradWire, AnyByteMayBeWrongWithoutHarm) {
  for (const AutogradMessage& message : one_of_each()) {
    const std::string good = written(message).SerializeAsString();
    for (size_t i = 0; i < good.size(); ++i) {
      for (const char change : {'\x01', '\x80', '\xff'}) {
        std::string bytes = good;
        bytes[i] = static_cast<char>(bytes[i] ^ change);
        wire::AutogradPost post;
        if (!post.ParseFromString(bytes)) continue;
        const auto read = from_wire(post);  // either it is refused, or it can be written again
        if (!read.ok()) continue;
        EXPECT_TRUE(from_wire(written(*read)).ok()) << kind_of(message) << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace weft::dist_autograd_internal
