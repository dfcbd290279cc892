/* Kernels of the example backend: one C function per op, called once per launch over the whole grid. */
#include <math.h>
#include <stdint.h>

#include "deepinfer/driver.h"

/* y[row][c] = x[row][c] / sqrt(mean(x[row]^2) + eps) * weight[c]; grid.x rows.
 * params: x, weight, y (addresses), row stride of x in elements (int64), d (int64), eps (float). */
DI_EXPORT void rms_norm_f32(di_dim3 grid, di_dim3 block, void* const* params) {
    const float* x = *(const float* const*)params[0];
    const float* weight = *(const float* const*)params[1];
    float* y = *(float* const*)params[2];
    const int64_t stride = *(const int64_t*)params[3], d = *(const int64_t*)params[4];
    const float eps = *(const float*)params[5];
    (void)block;
    for (uint32_t row = 0; row < grid.x; ++row) {
        const float* in = x + (int64_t)row * stride;
        double sum = 0.0;
        for (int64_t c = 0; c < d; ++c) sum += (double)in[c] * in[c];
        const float scale = (float)(1.0 / sqrt(sum / (double)(d ? d : 1) + eps));
        for (int64_t c = 0; c < d; ++c) y[(int64_t)row * d + c] = in[c] * scale * weight[c];
    }
}
