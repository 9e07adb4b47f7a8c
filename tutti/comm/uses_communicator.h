#pragma once

#include <memory>

#include "tutti/comm/communicator.h"

namespace tutti::comm {

// Something that needs all workers, such as a module that uses the examples of all of them. The code that
// trains a model passes the group to its modules (give_group() in params/agreement.h).
class UsesCommunicator {
 public:
  virtual ~UsesCommunicator() = default;
  // Sets the group of all workers, which only such modules use. They share it with the state that their
  // forward pass keeps for the backward pass. Replaces the previous group; nullptr means no other workers.
  virtual void use(std::shared_ptr<Communicator> group) = 0;
};

}  // namespace tutti::comm
