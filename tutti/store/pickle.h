#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <torch/types.h>

namespace tutti::store {

// Values of a pickle. Texts are parts of the pickle's bytes; lists and dictionaries belong to the Pickle.
struct PickleList;
struct PickleDict;
// A function or class of Python: "collections" and "OrderedDict".
struct PickleName {
  std::string_view module;
  std::string_view name;
};
// std::monostate stands for None, booleans and floating-point numbers, whose values are not needed.
using PickleValue = std::variant<std::monostate, int64_t, std::string_view, PickleName, torch::Tensor,
                                 PickleList*, PickleDict*>;
struct PickleList {  // or a tuple
  std::vector<PickleValue> items;
};
struct PickleDict {
  std::vector<std::pair<PickleValue, PickleValue>> entries;
};

// Reads plain data that Python's pickle module has written: numbers, texts, lists and dictionaries. A pickle
// is a program for a small stack machine, and Python's reader calls any function that the program names. This
// reader calls none of them: it asks `call` for the result, which throws an Error for unknown functions.
class Pickle {
 public:
  struct Handlers {
    std::function<PickleValue(const PickleName& function, const PickleList& arguments)> call;
    // Returns the value for a persistent id, which the program that wrote the pickle has defined.
    std::function<PickleValue(const PickleList& id)> find;
  };

  // `what` names the pickle in errors. Throws DataLoss if it is damaged or ends too early, and Unimplemented
  // if it has objects of classes.
  Pickle(std::string bytes, std::string what, Handlers handlers);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& value() const { return value_; }

 private:
  PickleValue run();
  void step(unsigned char operation);

  [[noreturn]] void fail_damaged(const char* why) const;
  [[noreturn]] void fail_object(const std::string& of) const;

  std::string_view take_bytes(uint64_t count);
  std::string_view line();
  uint64_t number(int bytes);  // little-endian

  void push(PickleValue value) { stack_.push_back(std::move(value)); }
  PickleValue pop();
  PickleValue& top();
  std::vector<PickleValue> pop_to_mark();
  PickleList* make_list(std::vector<PickleValue> items);
  PickleDict* make_dict();
  void add_entries(std::vector<PickleValue> keys_and_values);
  void reduce();

  const std::string bytes_;
  const std::string what_;
  const Handlers handlers_;
  size_t at_ = 0;
  std::vector<PickleValue> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, PickleValue> memo_;
  // Values that contain each other are only pointers, so that no depth of nesting overflows the stack.
  std::deque<PickleList> lists_;
  std::deque<PickleDict> dicts_;
  PickleValue value_;
};

}  // namespace tutti::store
