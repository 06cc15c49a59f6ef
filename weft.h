// Includes all that a program needs to call functions on other workers.
//
// Other features have headers of their own: optimizers, hosted modules and checkpoints in
// dist_optim/, process groups in comm/, DistributedDataParallel in ddp/. Of LibTorch, this header
// includes no more than ATen/core/Tensor.h.
#pragma once

#include "weft/async/future.h"
#include "weft/base/rpc_error.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/rref_backward.h"
#include "weft/rpc/class.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/rref/aten.h"
#include "weft/rref/rref.h"
#include "weft/worker/run_main.h"
#include "weft/worker/shared_empty.h"
#include "weft/worker/stop_request.h"
#include "weft/worker/worker.h"
