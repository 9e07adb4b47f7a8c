#pragma once

// All that a program needs: #include <tutti/tutti.h>

#include "tutti/base/error.h"
#include "tutti/base/flags.h"
#include "tutti/cluster/context.h"
#include "tutti/data/batch.h"
#include "tutti/data/feed.h"
#include "tutti/data/mnist.h"
#include "tutti/data/sampler.h"
#include "tutti/data/source.h"
#include "tutti/metrics/metrics.h"
#include "tutti/nn/sync_batch_norm.h"
#include "tutti/params/device_scope.h"
#include "tutti/params/distributed_optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/params/scope.h"
#include "tutti/train/hook.h"
#include "tutti/train/hooks/summaries.h"
#include "tutti/train/loop_checkpoints.h"
#include "tutti/train/run.h"
#include "tutti/train/schedule.h"
#include "tutti/train/trainer.h"
