// The program of the example, for tests: all of its main.cc but `main` itself. One file of a test's
// executable may include this.
#pragma once

#define main parameter_server_main
#include "weft/examples/parameter_server/main.cc"
#undef main
