#pragma once

#include "tutti/cluster/context.h"

namespace tutti {

// The life of a task that serves, until the job is done: of a parameter server (ps/server.h) in a job of
// these, else of a passive worker (passive/serve.h). A signal lets those finish that are connected to a
// parameter server, since they may want to save what there is, and is thrown as Interrupted then; a second
// one ends the process.
void serve(const Context& context);

}  // namespace tutti
