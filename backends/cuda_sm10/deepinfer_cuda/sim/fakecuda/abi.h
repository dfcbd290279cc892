// The part of the CUDA driver API's binary interface that the fake library implements: handles, codes, structures.
//
// Why not cuda.h: the library builds without any toolkit. Values and layouts are those of CUDA 13; a test compares them with
// cuda.h where that is installed. Every function has the name of its newest version, as dlsym and cuGetProcAddress look it up.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fakecuda {

enum CUresult : int {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_FILE_NOT_FOUND = 301,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_LAUNCH_TIMEOUT = 702,
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_ASSERT = 710,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_MISALIGNED_ADDRESS = 716,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    CUDA_ERROR_TENSOR_MEMORY_LEAK = 721,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_SYSTEM_NOT_READY = 802,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_INVALID_CLUSTER_SIZE = 912,
    CUDA_ERROR_UNKNOWN = 999,
};

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using Handle = void*;  // CUcontext, CUmodule, CUfunction, CUstream, CUevent, ...
using CUhostFn = void (*)(void*);
using CUstreamCallback = void (*)(Handle, CUresult, void*);

struct CUuuid {
    char bytes[16];
};

enum LaunchAttribute : int {
    kIgnore = 0, kAccessPolicyWindow = 1, kCooperative = 2, kSynchronizationPolicy = 3, kClusterDimension = 4, kClusterScheduling = 5,
    kProgrammaticSerialization = 6, kProgrammaticEvent = 7, kPriority = 8, kMemSyncDomainMap = 9, kMemSyncDomain = 10,
    kPreferredClusterDimension = 11, kLaunchCompletionEvent = 12, kDeviceUpdatable = 13, kSharedCarveout = 14, kNvlinkScheduling = 16
};

struct CUlaunchAttribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        int number;
        struct {
            unsigned x, y, z;
        } dim;
        struct {
            Handle event;
            int flags, trigger;
        } event;
    } value;
};
static_assert(sizeof(CUlaunchAttribute) == 72);

struct CUlaunchConfig {
    unsigned grid[3], block[3], shared_bytes;
    Handle stream;
    CUlaunchAttribute* attributes;
    unsigned attribute_count;
};
static_assert(sizeof(CUlaunchConfig) == 56);

struct CUDA_MEMCPY2D {
    size_t src_x, src_y;
    int src_type;
    const void* src_host;
    CUdeviceptr src_device;
    Handle src_array;
    size_t src_pitch, dst_x, dst_y;
    int dst_type;
    void* dst_host;
    CUdeviceptr dst_device;
    Handle dst_array;
    size_t dst_pitch, width, height;
};
static_assert(sizeof(CUDA_MEMCPY2D) == 128);

struct CUDA_GRAPH_INSTANTIATE_PARAMS {
    unsigned long long flags;
    Handle upload_stream, error_node;
    int result;
};
static_assert(sizeof(CUDA_GRAPH_INSTANTIATE_PARAMS) == 32);

}  // namespace fakecuda

// Every exported function: C linkage, default visibility, no exception leaves it.
#define FAKECUDA_API extern "C" __attribute__((visibility("default"))) CUresult
