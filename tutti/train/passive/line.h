#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tutti/base/json.h"
#include "tutti/cluster/context.h"
#include "tutti/ps/address_book.h"
#include "tutti/rpc/host.h"
#include "tutti/rpc/mailbox.h"
#include "tutti/rpc/message.h"

namespace tutti::passive {

// A passive worker's line to its master. It listens at the task's own address of the cluster. One master at a
// time is listened to: the one that has begun last, for as long as it is connected. Not thread-safe.
class Line {
 public:
  // Who beside its master may stop the worker, as `tutti stop` does.
  enum class Stop { ByAnybody, ByNobody };
  // The context outlives it.
  Line(const Context& context, Stop stop);
  ~Line();
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  struct Request {
    std::string method;
    const rpc::Message* message;
  };

  // The master's next request, which is to be answered before the next is asked for. Nothing where none came
  // within so long. Where the master has left, or another one begins, it is a PeerLost.
  std::optional<Request> next(std::chrono::milliseconds patience);
  // Until there is one.
  Request next();
  // The "begin" of whoever wants to be the master, or a "stop". Nothing where none came within so long.
  std::optional<Request> next_beginning(std::chrono::milliseconds patience);

  void answer(rpc::Message message);
  // Carries out what was asked for, and answers with what it returns; what it throws the master hears, and
  // whoever called this.
  void answer_with(const std::function<rpc::Message()>& body);

  // The same request is the next.
  void keep();

  // "master/0 (host a, pid 4711)"; "" before the first.
  const std::string& master() const { return master_name_; }

 private:
  std::optional<rpc::Mailbox::Letter> take(std::chrono::milliseconds patience);
  bool is_stop(const rpc::Mailbox::Letter& letter) const;
  void refuse(const rpc::Mailbox::Letter& letter);

  const Context& context_;
  const Stop stop_;
  rpc::Mailbox mailbox_;
  rpc::Host host_;
  ps::Announcement announcement_;
  std::optional<rpc::Mailbox::Letter> letter_;  // taken, and not answered yet
  bool kept_ = false;
  uint64_t master_ = 0;  // 0: none
  std::string master_name_;
};

}  // namespace tutti::passive
