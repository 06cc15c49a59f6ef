"""tools/check_layers.py refuses every kind of wrong include, and accepts a right tree."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).parents[2] / "tools" / "check_layers.py"

GOOD = {
    "base/ids.h": "#include <string>\n",
    "base/CMakeLists.txt": "weft_library(base base HDRS ids.h DEPS absl::strings)\n",
    "rpc/agent.h": '#include "weft/base/ids.h"\n#include "weft/proto/weft.pb.h"\n',
    "rpc/internal/frame.h": "#include <string>\n",
    "rpc/tensor.h": '#include <ATen/core/Tensor.h>\n\n#include "weft/rpc/agent.h"\n',
    "rpc/CMakeLists.txt": "weft_library(rpc_core rpc GRPC\n  HDRS agent.h)\n"
    "weft_library(rpc rpc TORCH\n  HDRS tensor.h)\n",
    "rref/internal/core.h": '#include "weft/base/ids.h"\n',
    "rref/CMakeLists.txt": "weft_library(rref_core rref\n  SRCS internal/core.h)\n",
    "worker/worker.h": '#include "weft/rpc/tensor.h"\n',
    "examples/hello.cc": '#include "weft/weft.h"\n#include "weft/worker/worker.h"\n',
    "tests/rref/core_test.cc": '#include "weft/rref/internal/core.h"\n',
}


class CheckLayersTest(unittest.TestCase):
    def check(self, name="base/ids.h", line=""):
        """Runs the script over GOOD with one line added to one file."""
        with tempfile.TemporaryDirectory() as folder:
            for file, text in GOOD.items():
                path = pathlib.Path(folder, file)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text + (line + "\n" if file == name else ""))
            run = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True)
            return run.returncode, run.stdout

    def refuses(self, name, line, message):
        code, output = self.check(name, line)
        self.assertEqual(code, 1, output)
        self.assertIn(message, output)

    def test_accepts_a_tree_that_keeps_to_its_layers(self):
        code, output = self.check()
        self.assertEqual((code, output), (0, "check_layers: 8 files keep to their layers\n"))

    def test_refuses_a_room_above(self):
        self.refuses("rpc/agent.h", '#include "weft/worker/worker.h"',
                     "rpc/agent.h:3: rpc may not include worker")

    def test_refuses_internals_in_examples(self):
        self.refuses("examples/hello.cc", '#include "weft/rref/internal/core.h"',
                     "examples/hello.cc:3: weft/rref/internal/core.h is internal to rref")

    def test_refuses_the_umbrella_header_inside_a_room(self):
        self.refuses("worker/worker.h", '#include "weft/weft.h"', "worker/worker.h:2: weft/weft.h")

    def test_refuses_libtorch_in_a_target_without_torch(self):
        self.refuses("rpc/agent.h", "#include <c10/util/Exception.h>",
                     "rpc/agent.h:3: weft::rpc_core has no TORCH but includes LibTorch")

    def test_refuses_libtorch_behind_another_header(self):
        self.refuses("rpc/agent.h", '#include "weft/rpc/tensor.h"',
                     "rpc/agent.h:3: weft::rpc_core has no TORCH but includes LibTorch: "
                     "rpc/tensor.h:1 -> ATen/core/Tensor.h")

    def test_refuses_grpc_and_protobuf_in_base(self):
        self.refuses("base/ids.h", "#include <grpcpp/grpcpp.h>",
                     "base/ids.h:2: weft::base includes gRPC or protobuf")
        self.refuses("base/ids.h", "#include <google/protobuf/arena.h>",
                     "base/ids.h:2: weft::base includes gRPC or protobuf")

    def test_refuses_grpc_in_a_state_machine(self):
        self.refuses("rref/internal/core.h", "#include <grpcpp/grpcpp.h>",
                     "rref/internal/core.h:2: weft::rref_core is a state machine")

    def test_refuses_an_installed_header_that_includes_one_that_is_not(self):
        self.refuses("rpc/tensor.h", '#include "weft/rpc/internal/frame.h"',
                     "rpc/tensor.h:4: is installed, weft/rpc/internal/frame.h is not")

    def test_refuses_paths_that_do_not_start_at_the_root(self):
        self.refuses("rpc/agent.h", '#include "tensor.h"',
                     'rpc/agent.h:3: "tensor.h" is spelled "weft/..." from the root')

    def test_refuses_an_empty_tree(self):
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True)
            self.assertEqual(run.returncode, 1)


if __name__ == "__main__":
    unittest.main()
