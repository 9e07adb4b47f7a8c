#include "tutti/base/test_run.h"

int main(int argc, char** argv) { return tutti::run_tests(argc, argv); }
