#pragma once

namespace tutti {

// Cores for one of `local_world` tasks that share this host: an equal part of those that the process that
// started this one may use, and never more than this one may use itself. So it holds for a launcher that
// gives every task cores of its own, for one that binds several to one socket, and for one that binds none;
// taskset and containers count. At least 1.
int share_of_cores(int local_world);

// Whether `local_world` tasks that share this host need not share a core, by the same reckoning.
bool have_a_core_each(int local_world);

}  // namespace tutti
