#include "tutti/transport/operation.h"

#include <array>
#include <cstring>

#include <fmt/format.h>

#include "tutti/base/deadline.h"

namespace tutti::comm {
namespace {

template <size_t N>
void copy_name(char (&to)[N], const char* from) {
  std::strncpy(to, from, N - 1);
  to[N - 1] = '\0';
}

// Returns " to rank 2", " from rank 2 with tag 7" or " from any rank" for a send or recv, else "".
std::string between(std::string_view name, int peer, int tag) {
  if (peer < 0 && peer != kAnyRank) return "";
  const std::string other = peer == kAnyRank ? "any rank" : fmt::format("rank {}", peer);
  const std::string tagged = tag == 0 ? "" : fmt::format(" with tag {}", tag);
  return fmt::format(" {} {}{}", name == "send" ? "to" : "from", other, tagged);
}

}  // namespace

Operation operation_of(const char* name, const Options& options, std::chrono::milliseconds usual,
                       Timeline* timeline) {
  const auto timeout = options.timeout.count() > 0 ? options.timeout : usual;
  const char* const what = options.what == nullptr ? "" : options.what;
  return {.name = name,
          .what = what,
          .step = options.step,
          .deadline = deadline_after(timeout),
          .timeout = timeout,
          .timeline = timeline,
          .any_order = options.any_order};
}

// FNV-1a hash.
uint64_t key_of(const Operation& operation) {
  uint64_t key = 14695981039346656037ULL;
  const auto mix = [&key](uint64_t value) { key = (key ^ value) * 1099511628211ULL; };
  for (const char* name = operation.name; *name != '\0'; ++name) mix(static_cast<unsigned char>(*name));
  mix(static_cast<uint64_t>(operation.root));
  if (!operation.whole) return key;
  mix(static_cast<uint64_t>(operation.whole->type));
  mix(static_cast<uint64_t>(operation.whole->op));
  mix(static_cast<uint64_t>(operation.whole->count));
  return key;
}

OperationLabel::OperationLabel(const Operation& operation)
    : name{},
      what{},
      step(operation.step),
      count(operation.whole ? operation.whole->count : -1),
      type(operation.whole ? static_cast<int32_t>(operation.whole->type) : -1),
      op(operation.whole ? static_cast<int32_t>(operation.whole->op) : 0),
      root(operation.root),
      peer(operation.peer),
      tag(operation.tag) {
  copy_name(name, operation.name);
  copy_name(what, operation.what);
}

std::string OperationLabel::elements() const {
  const std::string type_of(name_of(static_cast<ElementType>(type)));
  return count < 0 ? type_of : fmt::format("{} {}", count, type_of);
}

std::string OperationLabel::text() const {
  static constexpr std::array<const char*, 8> kOps = {"",          ", average", ", min",    ", max",
                                                      ", product", ", bit and", ", bit or", ", bit xor"};
  std::string text(name, ::strnlen(name, sizeof name));
  if (what[0] != '\0') text += " of " + std::string(what, ::strnlen(what, sizeof what));
  if (type >= 0) text += fmt::format(" ({}{})", elements(), kOps.at(static_cast<size_t>(op)));
  if (root >= 0) text += fmt::format(" with root {}", root);
  text += between(std::string_view(name, ::strnlen(name, sizeof name)), peer, tag);
  if (step >= 0) text += fmt::format(" at step {}", step);
  return text;
}

std::string different_operations(const std::string& who, const OperationLabel& label,
                                 const std::string& other, const OperationLabel& theirs) {
  return fmt::format(
      "{} calls {} while {} calls {}: every rank has to call the same operations in the same order, with the "
      "same sizes and root",
      who, label.text(), other, theirs.text());
}

std::string other_message(const std::string& receiver, const OperationLabel& expected,
                          const std::string& sender, const OperationLabel& sent) {
  if (expected.type == sent.type && expected.count == sent.count) return "";
  OperationLabel call = expected;
  call.type = -1;  // its elements are named once
  return fmt::format("{} failed: {} expects {} from {}, which sends {}", call.text(), receiver,
                     expected.elements(), sender, sent.elements());
}

std::string describe(const Operation& operation) {
  std::string text = operation.name;
  if (*operation.what != '\0') text += fmt::format(" of {}", operation.what);
  text += between(operation.name, operation.peer, operation.tag);
  if (operation.step >= 0) text += fmt::format(" at step {}", operation.step);
  return text;
}

std::string_view why_not_there(const Operation& operation) {
  if (operation.step >= 0) return "";
  return ". A rank may also skip this call if it is inside a condition such as `if (ctx.is_chief())`";
}

}  // namespace tutti::comm
