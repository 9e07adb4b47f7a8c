#pragma once

#include "tutti/cluster/context.h"

namespace tutti {

// The life of a parameter server (ps/server.h): until the job is done. A signal lets those finish that are
// connected, since they may want to save what there is, and is thrown as Interrupted then; a second one ends
// the process.
void serve(const Context& context);

}  // namespace tutti
