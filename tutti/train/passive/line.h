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

// A passive worker's connection to its master. Listens at the task's own address in the cluster. There is one
// master at a time: the one that sent the last "begin", for as long as it is connected. Not thread-safe.
class Line {
 public:
  // Says whether any caller may stop the worker, as `tutti stop` does, or only its master.
  enum class Stop { ByAnybody, ByNobody };
  // The context must outlive this.
  Line(const Context& context, Stop stop);
  ~Line();
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  struct Request {
    std::string method;
    const rpc::Message* message;
  };

  // Returns the master's next request, which has to be answered before the next call; nullopt if none arrived
  // before the timeout. Throws PeerLost if the master has left or begins again, and InvalidArgument, with the
  // master's reason, if it has refused the workers because one of them was started in another way.
  std::optional<Request> next(std::chrono::milliseconds patience);
  // Waits without a timeout.
  Request next();
  // Returns the "begin" of a new master, or a "stop"; nullopt if none arrived before the timeout.
  std::optional<Request> next_beginning(std::chrono::milliseconds patience);

  void answer(rpc::Message message);
  // Runs the body for the current request, and answers with its result. An exception goes to the master, and
  // is rethrown to the caller.
  void answer_with(const std::function<rpc::Message()>& body);

  // Makes the next call return the same request again.
  void keep();

  // The name of the master, such as "master/0 (host a, pid 4711)"; "" before there is one.
  const std::string& master() const { return master_name_; }

 private:
  std::optional<rpc::Mailbox::Request> take(std::chrono::milliseconds patience);
  bool is_stop(const rpc::Mailbox::Request& taken) const;
  void refuse(const rpc::Mailbox::Request& taken);

  const Context& context_;
  const Stop stop_;
  rpc::Mailbox mailbox_;
  rpc::Host host_;
  ps::Announcement announcement_;
  std::optional<rpc::Mailbox::Request> taken_;  // not answered yet
  bool kept_ = false;
  uint64_t master_ = 0;  // the caller id; 0: none
  std::string master_name_;
};

}  // namespace tutti::passive
