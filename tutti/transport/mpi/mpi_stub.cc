#include "tutti/base/error.h"
#include "tutti/transport/mpi/mpi.h"

namespace tutti::comm {
namespace {

[[noreturn]] void mpi_missing() {
  fail(ErrorKind::Unimplemented,
       "this build has no MPI. Install it (libopenmpi-dev, openmpi-bin) and build again with "
       "-DTUTTI_WITH_MPI=ON, or use another --comm");
}

}  // namespace

bool mpi_built() { return false; }
void mpi_initialise() { mpi_missing(); }
void mpi_never_finalise() noexcept {}
std::string mpi_broadcast_text(const std::string&, int, std::chrono::milliseconds) { mpi_missing(); }
std::unique_ptr<Transport> mpi_transport(std::shared_ptr<Rendezvous>, const MpiOptions&) { mpi_missing(); }

}  // namespace tutti::comm
