#pragma once

#include <memory>

#include "tutti/comm/communicator.h"

namespace tutti::comm {

// Something that works on all workers together, such as a module that looks at the examples of all of them.
// Who trains a model gives its modules their group (params/module_group.h).
class UsesCommunicator {
 public:
  virtual ~UsesCommunicator() = default;
  // All workers, in a group that nobody else but such modules uses. Shared by them and by what their forward
  // leaves behind for the backward pass. Takes the place of what was given before; empty: alone again.
  virtual void use(std::shared_ptr<Communicator> group) = 0;
};

}  // namespace tutti::comm
