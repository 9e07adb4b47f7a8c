#include "tutti/store/pickle.h"

#include <fmt/format.h>

#include "tutti/base/error.h"

namespace tutti::store {
namespace {

// The operations of the format (Python's pickletools) that plain data needs, of the protocols 2 to 5.
enum Operation : unsigned char {
  kMark = '(',
  kStop = '.',
  kNone = 'N',
  kTrue = 0x88,
  kFalse = 0x89,
  kInt1 = 'K',
  kInt2 = 'M',
  kInt4 = 'J',
  kLong1 = 0x8a,
  kFloat = 'G',
  kText1 = 0x8c,
  kText4 = 'X',
  kText8 = 0x8d,
  kBytes1 = 'U',
  kBytes4 = 'T',
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kEmptyTuple = ')',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kTuple = 't',
  kEmptyDict = '}',
  kDict = 'd',
  kSetItem = 's',
  kSetItems = 'u',
  kPut1 = 'q',
  kPut4 = 'r',
  kMemoize = 0x94,
  kGet1 = 'h',
  kGet4 = 'j',
  kName = 'c',
  kNameOfStack = 0x93,
  kCall = 'R',
  kNew = 0x81,
  kBuild = 'b',
  kFind = 'Q',
  kProtocol = 0x80,
  kFrame = 0x95,
};

bool is_ordered_dict(const PickleName& name) {
  return name.module == "collections" && name.name == "OrderedDict";
}

}  // namespace

Pickle::Pickle(std::string bytes, std::string what, Handlers handlers)
    : bytes_(std::move(bytes)), what_(std::move(what)), handlers_(std::move(handlers)), value_(run()) {}

PickleValue Pickle::run() {
  for (;;) {
    const auto operation = static_cast<unsigned char>(take_bytes(1).front());
    if (operation == kStop) return pop();
    step(operation);
  }
}

void Pickle::step(unsigned char operation) {
  switch (operation) {
    case kProtocol:
      return void(take_bytes(1));
    case kFrame:
      return void(take_bytes(8));

    case kNone:
    case kTrue:
    case kFalse:
      return push({});
    case kFloat:
      return take_bytes(8), push({});
    case kInt1:
      return push(static_cast<int64_t>(number(1)));
    case kInt2:
      return push(static_cast<int64_t>(number(2)));
    case kInt4:
      return push(int64_t{static_cast<int32_t>(number(4))});
    case kLong1: {
      const auto bytes = static_cast<int>(number(1));
      if (bytes > 8) return take_bytes(static_cast<uint64_t>(bytes)), push({});  // larger than any size
      const uint64_t bits = number(bytes);
      const int unused = 64 - 8 * bytes;  // the highest byte has the sign
      return push(bytes == 0 ? int64_t{0} : static_cast<int64_t>(bits << unused) >> unused);
    }
    case kText1:
    case kBytes1:
      return push(take_bytes(number(1)));
    case kText4:
    case kBytes4:
      return push(take_bytes(number(4)));
    case kText8:
      return push(take_bytes(number(8)));

    case kMark:
      return marks_.push_back(stack_.size());
    case kEmptyTuple:
    case kEmptyList:
      return push(make_list({}));
    case kTuple:
      return push(make_list(pop_to_mark()));
    case kTuple1:
    case kTuple2:
    case kTuple3: {
      std::vector<PickleValue> items(static_cast<size_t>(operation - kTuple1 + 1));
      for (size_t i = items.size(); i-- > 0;) items[i] = pop();
      return push(make_list(std::move(items)));
    }
    case kAppend:
    case kAppends: {
      std::vector<PickleValue> items;
      if (operation == kAppend)
        items.push_back(pop());
      else
        items = pop_to_mark();
      auto* const* list = std::get_if<PickleList*>(&top());
      if (list == nullptr) fail_damaged("appends to a value that is not a list");
      return void((*list)->items.insert((*list)->items.end(), items.begin(), items.end()));
    }
    case kEmptyDict:
      return push(make_dict());
    case kDict: {
      std::vector<PickleValue> items = pop_to_mark();
      push(make_dict());
      return add_entries(std::move(items));
    }
    case kSetItem: {
      PickleValue value = pop();
      PickleValue key = pop();
      return add_entries({std::move(key), std::move(value)});
    }
    case kSetItems:
      return add_entries(pop_to_mark());

    case kPut1:
      return void(memo_[number(1)] = top());
    case kPut4:
      return void(memo_[number(4)] = top());
    case kMemoize:
      return void(memo_.emplace(memo_.size(), top()));
    case kGet1:
    case kGet4: {
      const auto found = memo_.find(number(operation == kGet1 ? 1 : 4));
      if (found == memo_.end()) fail_damaged("uses a value that it does not have");
      return push(found->second);
    }

    case kName: {
      const std::string_view module = line();
      return push(PickleName{module, line()});
    }
    case kNameOfStack: {
      const PickleValue name = pop();
      const PickleValue module = pop();
      if (!std::holds_alternative<std::string_view>(name) ||
          !std::holds_alternative<std::string_view>(module))
        fail_damaged("names a function by something that is not a text");
      return push(PickleName{std::get<std::string_view>(module), std::get<std::string_view>(name)});
    }
    case kCall:
    case kNew:
      return reduce();
    case kBuild: {
      // PyTorch attaches the versions of its modules to the dictionary of their tensors.
      pop();
      if (!std::holds_alternative<PickleDict*>(top())) fail_object("a class");
      return;
    }
    case kFind: {
      const PickleValue id = pop();
      auto* const* list = std::get_if<PickleList*>(&id);
      if (list == nullptr) fail_damaged("asks for a value by something that is not a tuple");
      return push(handlers_.find(**list));
    }
    default:
      fail_damaged("has an operation that plain data does not need");
  }
}

void Pickle::fail_damaged(const char* why) const {
  fail(ErrorKind::DataLoss,
       "{}: the file is damaged, or was not written by torch.save(): its pickle {} (byte {})", what_, why,
       at_);
}

void Pickle::fail_object(const std::string& of) const {
  fail(ErrorKind::Unimplemented,
       "{}: it contains an object of {}, but only tensors in dictionaries are read. In Python: "
       "torch.save(model.state_dict(), ...)",
       what_, of);
}

std::string_view Pickle::take_bytes(uint64_t count) {
  if (count > bytes_.size() - at_) fail_damaged("ends too early");
  const std::string_view bytes = std::string_view(bytes_).substr(at_, count);
  at_ += count;
  return bytes;
}

std::string_view Pickle::line() {
  const size_t end = bytes_.find('\n', at_);
  if (end == std::string::npos) fail_damaged("ends too early");
  const std::string_view text = take_bytes(end - at_);
  take_bytes(1);
  return text;
}

uint64_t Pickle::number(int bytes) {
  uint64_t value = 0;
  int shift = 0;
  for (const char byte : take_bytes(static_cast<uint64_t>(bytes))) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(byte)) << shift;
    shift += 8;
  }
  return value;
}

PickleValue Pickle::pop() {
  PickleValue value = std::move(top());
  stack_.pop_back();
  return value;
}

// Values below a mark belong to the list that the mark begins.
PickleValue& Pickle::top() {
  if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size()))
    fail_damaged("takes a value that it has not made");
  return stack_.back();
}

std::vector<PickleValue> Pickle::pop_to_mark() {
  if (marks_.empty()) fail_damaged("ends a list that it has not begun");
  const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<PickleValue> items(std::make_move_iterator(begin), std::make_move_iterator(stack_.end()));
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return items;
}

PickleList* Pickle::make_list(std::vector<PickleValue> items) {
  return &lists_.emplace_back(PickleList{std::move(items)});
}

PickleDict* Pickle::make_dict() { return &dicts_.emplace_back(); }

void Pickle::add_entries(std::vector<PickleValue> keys_and_values) {
  auto* const* dict = std::get_if<PickleDict*>(&top());
  if (dict == nullptr || keys_and_values.size() % 2 != 0)
    fail_damaged("adds entries to a value that is not a dictionary");
  for (size_t i = 0; i < keys_and_values.size(); i += 2)
    (*dict)->entries.emplace_back(std::move(keys_and_values[i]), std::move(keys_and_values[i + 1]));
}

void Pickle::reduce() {
  const PickleValue arguments = pop();
  const PickleValue function = pop();
  auto* const* list = std::get_if<PickleList*>(&arguments);
  const auto* name = std::get_if<PickleName>(&function);
  if (list == nullptr || name == nullptr) fail_damaged("calls something that is not a function");
  push(is_ordered_dict(*name) && (*list)->items.empty() ? PickleValue(make_dict())
                                                        : handlers_.call(*name, **list));
}

}  // namespace tutti::store
