// The vendor's classic header. C-style kernels use a handful of its names; they live in asc_sim/sync.h.
#pragma once
#include "c_api/asc_simd.h"
