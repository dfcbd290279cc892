/* KV cache formats as device code sees them. A test keeps this table in step with deepinfer.ops.flash_mla.formats.
 *
 * A row is `coded` quantised channels followed by `plain` bf16 channels. Codes are e4m3 (bits 8) or e2m1 (bits 4, even
 * channel in the low nibble); `tile` coded channels share one scale.
 *  - Interleaved formats (split 0): one record of `token_bytes` per token: codes | scales | plain.
 *  - Split formats (split 1): a block of `page` tokens holds page * (codes | plain), then page * (scales | scale_pad).
 * Blocks may lie any distance apart; fresh ones are padded to a multiple of `block_multiple` bytes.
 */
#ifndef DEEPINFER_KV_FORMAT_H
#define DEEPINFER_KV_FORMAT_H

enum di_kv_scale { DI_KV_SCALE_NONE = 0, DI_KV_SCALE_F32 = 1, DI_KV_SCALE_UE8M0 = 2, DI_KV_SCALE_E4M3 = 3 };

/* X(name, code, width, coded, plain, bits, tile, scale kind, split, scale_pad, token_bytes, block_multiple)
 * Plain formats have width 0 (any) and token_bytes 0 (width * element size). */
#define DI_KV_FORMATS(X)                                                    \
    X(F32, 0, 0, 0, 0, 8, 0, DI_KV_SCALE_NONE, 0, 0, 0, 1)                  \
    X(BF16, 1, 0, 0, 0, 8, 0, DI_KV_SCALE_NONE, 0, 0, 0, 1)                 \
    X(V32_FP8, 2, 576, 512, 64, 8, 128, DI_KV_SCALE_F32, 0, 0, 656, 656)    \
    X(V4_FP8, 3, 512, 448, 64, 8, 64, DI_KV_SCALE_UE8M0, 1, 1, 584, 576)    \
    X(V41_FP8, 4, 512, 512, 0, 8, 32, DI_KV_SCALE_UE8M0, 0, 0, 528, 528)    \
    X(V41_FP8_PAGED, 5, 512, 512, 0, 8, 32, DI_KV_SCALE_UE8M0, 1, 0, 528, 512) \
    X(V41_FP4, 6, 512, 512, 0, 4, 16, DI_KV_SCALE_E4M3, 0, 0, 288, 288)     \
    X(V41_FP4_PAGED, 7, 512, 512, 0, 4, 16, DI_KV_SCALE_E4M3, 1, 0, 288, 256) \
    X(INDEX_FP4, 8, 128, 128, 0, 4, 32, DI_KV_SCALE_UE8M0, 1, 0, 68, 544)   \
    X(INDEX_FP8, 9, 128, 128, 0, 8, 128, DI_KV_SCALE_F32, 1, 0, 132, 1056)

#define DI_KV_ENUM(name, code, ...) DI_KV_##name = code,
enum di_kv_format { DI_KV_FORMATS(DI_KV_ENUM) DI_KV_FORMAT_COUNT };
#undef DI_KV_ENUM

#endif
