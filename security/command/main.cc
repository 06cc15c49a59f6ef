// weft_cert; see command.h.
#include <iostream>

#include "weft/security/command/command.h"

int main(int argc, char** argv) {
  return weft::security_internal::run_command(argc, argv, std::cout, std::cerr);
}
