#pragma once

namespace tutti {

// Returns the number of cores for one of `local_world` tasks on this host, at least 1: an equal share of
// the cores of the parent process, but not more than this process may use itself. This covers launchers
// that give every task its own cores, bind several to one socket, or bind none. Respects taskset and
// containers.
int share_of_cores(int local_world);

// Returns true if, counted in the same way, each of `local_world` tasks on this host can have a core.
bool have_a_core_each(int local_world);

}  // namespace tutti
