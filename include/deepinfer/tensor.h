/* Plain views of tensors that cross the driver ABI. Field order and codes follow DLPack 1.x, so a DLTensor can
 * be copied into a di_tensor member by member. Views own nothing.
 */
#ifndef DEEPINFER_TENSOR_H
#define DEEPINFER_TENSOR_H

#include <stdint.h>

typedef struct di_dtype {
    uint8_t code; /* DLPack type code: 0 int, 1 uint, 2 float, 4 bfloat, 10.. float8/float6/float4 kinds */
    uint8_t bits;
    uint16_t lanes;
} di_dtype;

typedef struct di_tensor {
    void* data;           /* device address of the allocation; add byte_offset to reach element 0 */
    int32_t device_type;  /* DLPack device type: 1 host, 2 CUDA, 12 extension device */
    int32_t device_id;
    int32_t ndim;
    di_dtype dtype;
    const int64_t* shape;   /* ndim entries, in elements */
    const int64_t* strides; /* ndim entries, in elements; never NULL here */
    uint64_t byte_offset;
} di_tensor;

#endif
