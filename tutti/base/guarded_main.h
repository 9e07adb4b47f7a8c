#pragma once

#include <functional>
#include <string>

namespace tutti {

// Opens /dev/null in place of standard input, output and error if these are closed. Otherwise the next file
// or socket that the program opens would get their number: the program would read its own text, or print into
// a connection. Call it before anything else is opened.
void open_standard_streams();

// The complete body of a main(): opens the standard streams, calls `body` and returns its exit code. An
// exception is printed as one line on standard error, "Kind: what happened, to whom, what to do", and returns
// the exit code of its kind; an exception that is not Tutti's returns 1 (docs/operations.md lists all codes).
// A failure to write standard output is an error too. If memory runs out in a thread that does not catch the
// exception, such as a thread of a library, the process ends at once with the code of Overloaded. Static
// objects are not destroyed if exit() is called before `body` has returned, since other threads may still use
// them, nor after Overloaded, since libraries may lack threads that they wait for.
int guarded_main(const std::function<int()>& body);

// Returns the meaning of a program's exit code: the kind of an error, such as "Timeout", or a signal, such as
// "SIGTERM". Returns "" for 0 and for codes that Tutti does not use.
std::string meaning_of_exit_code(int code);

}  // namespace tutti
