// What every program that calls other workers includes. Optimizers, hosted modules and checkpoints
// have headers of their own (dist_optim/), and so have process groups (comm/) and
// DistributedDataParallel with what belongs to it (ddp/). Itself only as heavy as
// ATen/core/Tensor.h.
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
#include "weft/worker/worker.h"
