// Structured sparsity: which elements of a row the metadata keeps (PTX ISA, "Sparse matrix storage").
//
// Four metadata bits belong to a group: two indices of two bits. A group is four elements of 16 or 8 bits (two are kept), two tf32
// elements (one is kept, the indices count its halves), or eight elements of 4 bits (two pairs are kept).
#pragma once
#include <vector>

#include "isa/types.h"

namespace ptxsim {

enum class SparseGroup : u8 { one_of_two = 2, two_of_four = 4, pairs_of_eight = 8 };

inline SparseGroup sparse_group(int bits) {
    return bits == 32 ? SparseGroup::one_of_two : bits == 4 ? SparseGroup::pairs_of_eight : SparseGroup::two_of_four;
}

// Position in its group of kept element i (0 to group/2 - 1) under the group's four metadata bits.
inline u32 sparse_position(SparseGroup g, u32 nibble, u32 i) {
    switch (g) {
        case SparseGroup::one_of_two: return (nibble & 3) / 2;
        case SparseGroup::two_of_four: return nibble >> (2 * i) & 3;
        default: return 2 * (nibble >> (2 * (i / 2)) & 3) + i % 2;
    }
}

// Column of kept element `i` of a row whose group g of metadata is nibble(g).
template <class Nibble>
u32 sparse_column(SparseGroup g, u32 i, Nibble&& nibble) {
    u32 kept = u32(g) / 2, group = i / kept;
    return group * u32(g) + sparse_position(g, nibble(group), i % kept);
}

}  // namespace ptxsim
