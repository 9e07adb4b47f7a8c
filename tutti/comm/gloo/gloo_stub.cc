#include "tutti/base/error.h"
#include "tutti/comm/gloo/gloo.h"

namespace tutti::comm {

bool gloo_built() { return false; }

std::unique_ptr<Transport> gloo_transport(std::shared_ptr<Rendezvous>, const GlooOptions&) {
  fail(ErrorKind::Unimplemented,
       "this build has no Gloo, since its headers were not found beside LibTorch. Install them (libgloo-dev) "
       "and build again with -DTUTTI_WITH_GLOO=ON");
}

}  // namespace tutti::comm
