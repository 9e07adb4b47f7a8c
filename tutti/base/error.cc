#include "tutti/base/error.h"

#include <cerrno>
#include <string.h>
#include <system_error>

#include <fmt/format.h>

namespace tutti {

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::InvalidArgument:
      return "InvalidArgument";
    case ErrorKind::PeerLost:
      return "PeerLost";
    case ErrorKind::Timeout:
      return "Timeout";
    case ErrorKind::DataLoss:
      return "DataLoss";
    case ErrorKind::Overloaded:
      return "Overloaded";
    case ErrorKind::Unimplemented:
      return "Unimplemented";
    case ErrorKind::Bug:
      return "Bug";
  }
  return "Bug";
}

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::InvalidArgument:
      return 2;
    case ErrorKind::PeerLost:
      return 10;
    case ErrorKind::Timeout:
      return 11;
    case ErrorKind::DataLoss:
      return 12;
    case ErrorKind::Overloaded:
      return 13;
    case ErrorKind::Unimplemented:
      return 14;
    case ErrorKind::Bug:
      return 70;
  }
  return 70;
}

std::string errno_text(int error_number) { return std::generic_category().message(error_number); }

void fail_errno(int error_number, std::string_view what) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case EAGAIN:
      fail(ErrorKind::Overloaded, "{}: {}", what, errno_text(error_number));
    case EIO:
      fail(ErrorKind::DataLoss, "{}: {}", what, errno_text(error_number));
    default:
      fail(ErrorKind::InvalidArgument, "{}: {}", what, errno_text(error_number));
  }
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

}  // namespace tutti
