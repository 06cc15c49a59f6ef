// Says who may call a function: all members of the group, those with certain roles, or only the
// worker itself.
//
//   WEFT_REGISTER_FUNCTION(evaluate);                                      // every member
//   WEFT_REGISTER_FUNCTION(push, weft::Access{"trainer", "evaluator"});    // these roles
//   WEFT_REGISTER_FUNCTION(reset, weft::local_only);                       // no other worker
//
// In the list of WEFT_REGISTER_CLASS, an Access stands before the constructors and methods that it
// concerns: all up to the next one, as with `public:` and `private:` in a class:
//
//   WEFT_REGISTER_CLASS(Server, weft::constructor<int64_t>(), &Server::pull,
//                       weft::Access{"trainer"}, &Server::push, weft::local_only, &Server::reset);
//
// A worker may always call its own functions. The role of a worker is ROLE_NAME of its launcher,
// or "default". docs/security.md says when a role is proven, and what a policy file changes.
//
// Thread safety: plain values.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace weft {

// A tag for registrations. All its members are public because it is a template argument; use only
// the constructors.
struct Access {
  // Every member of the group.
  constexpr Access() = default;
  // Members with one of these roles. A role has letters, digits, '-', '.' and '_'. All roles, and
  // the commas between them, have at most 127 characters. Otherwise it does not compile in the list
  // of a class, and throws std::invalid_argument elsewhere: a registration ends the program before
  // main.
  template <size_t... n>
  constexpr Access(const char (&... role)[n])  // NOLINT(google-explicit-constructor)
      requires(sizeof...(n) > 0) {
    (add(role), ...);
  }

  char roles[128] = {};  // joined by ','
  bool local = false;

 private:
  constexpr void add(std::string_view role) {
    if (role.empty()) throw std::invalid_argument("weft: a role is empty");
    size_t end = 0;
    while (roles[end] != '\0') ++end;
    if (end > 0 && end + 1 < sizeof roles) roles[end++] = ',';
    if (end + role.size() >= sizeof roles) throw std::invalid_argument("weft: too many roles");
    for (const char c : role) {
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      if (!letter && !(c >= '0' && c <= '9') && c != '-' && c != '.' && c != '_') {
        throw std::invalid_argument("weft: a role has letters, digits, '-', '.' and '_'");
      }
      roles[end++] = c;
    }
  }
};

// No other worker.
inline constexpr Access local_only = [] {
  Access access;
  access.local = true;
  return access;
}();

// InvalidArgument: it is not 1 to 127 letters, digits, '-', '.' and '_', or it is "." or "..". A
// certificate could not name it.
absl::Status check_role(std::string_view role);

// The same for the table of a worker's functions.
struct AccessRule {
  bool local_only = false;
  std::vector<std::string> roles;  // empty, and not local_only: every member

  AccessRule() = default;
  explicit AccessRule(const Access& tag);

  // Whether another worker with this role may call.
  bool allows(std::string_view role) const;
  // "every member", "no other worker", "role trainer", "roles trainer, evaluator".
  std::string to_string() const;
  friend bool operator==(const AccessRule&, const AccessRule&) = default;
};

}  // namespace weft
