#pragma once

#include <string>

#include "tests/drawn/draw.h"
#include "tutti/cluster/context.h"

namespace tutti::testing {

// An interruption of one task that happens once, at a given forward pass of the training.
struct Accident {
  std::string mark;  // a file whose existence says that it has happened; "": nothing happens
  int64_t rank = 0;
  int64_t pass = 0;
  int signal = 0;
};

// Creates the model and the data of the draw and trains; the context determines everything else.
void train(const Context& context, const Draw& draw, const Accident& accident = {});

}  // namespace tutti::testing
