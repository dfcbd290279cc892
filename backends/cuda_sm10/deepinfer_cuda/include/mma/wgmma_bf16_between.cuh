// Warpgroup matrix multiply for bf16 with the numbers of columns between those of wgmma_bf16.cuh; see there.
#pragma once

#include "mma/wgmma_bf16.cuh"

namespace di {

#define DI_NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define DI_NAMES_1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DI_NAMES_2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define DI_NAMES_3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define DI_NAMES_4 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define DI_NAMES_5 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define DI_NAMES_6 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define DI_SUMS(i)                                                            \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]),               \
    "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7]),           \
    "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]), "+f"(d[i + 11]),         \
    "+f"(d[i + 12]), "+f"(d[i + 13]), "+f"(d[i + 14]), "+f"(d[i + 15])

template <>
struct Wgmma<160> {
    static __device__ __forceinline__ void mma(float (&d)[80], uint64_t a, uint64_t b, uint32_t accumulate) {
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "setp.ne.b32 p, %82, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 "
            "{" DI_NAMES_0 ", " DI_NAMES_1 ", " DI_NAMES_2 ", " DI_NAMES_3 ", " DI_NAMES_4 "}, %80, %81, p, 1, 1, 0, 0;\n"
            "}\n"
            : DI_SUMS(0), DI_SUMS(16), DI_SUMS(32), DI_SUMS(48), DI_SUMS(64)
            : "l"(a), "l"(b), "r"(accumulate));
    }
};

template <>
struct Wgmma<192> {
    static __device__ __forceinline__ void mma(float (&d)[96], uint64_t a, uint64_t b, uint32_t accumulate) {
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "setp.ne.b32 p, %98, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
            "{" DI_NAMES_0 ", " DI_NAMES_1 ", " DI_NAMES_2 ", " DI_NAMES_3 ", " DI_NAMES_4 ", "
            DI_NAMES_5 "}, %96, %97, p, 1, 1, 0, 0;\n"
            "}\n"
            : DI_SUMS(0), DI_SUMS(16), DI_SUMS(32), DI_SUMS(48), DI_SUMS(64), DI_SUMS(80)
            : "l"(a), "l"(b), "r"(accumulate));
    }
};

template <>
struct Wgmma<224> {
    static __device__ __forceinline__ void mma(float (&d)[112], uint64_t a, uint64_t b, uint32_t accumulate) {
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "setp.ne.b32 p, %114, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n224k16.f32.bf16.bf16 "
            "{" DI_NAMES_0 ", " DI_NAMES_1 ", " DI_NAMES_2 ", " DI_NAMES_3 ", " DI_NAMES_4 ", "
            DI_NAMES_5 ", " DI_NAMES_6 "}, %112, %113, p, 1, 1, 0, 0;\n"
            "}\n"
            : DI_SUMS(0), DI_SUMS(16), DI_SUMS(32), DI_SUMS(48), DI_SUMS(64), DI_SUMS(80), DI_SUMS(96)
            : "l"(a), "l"(b), "r"(accumulate));
    }
};

#undef DI_SUMS
#undef DI_NAMES_0
#undef DI_NAMES_1
#undef DI_NAMES_2
#undef DI_NAMES_3
#undef DI_NAMES_4
#undef DI_NAMES_5
#undef DI_NAMES_6

}  // namespace di
