# ruff: noqa: E501 (PTX statements that belong together stay on one line)
"""Tables of integer and floating-point forms. Signature: operand types -> result type (T: last type of the form)."""

from __future__ import annotations

from collections.abc import Iterator

from ptx_bitwise.case import Case
from ptx_bitwise.lanes import table

VIDEO = """
{vadd,vsub,vabsdiff,vmin,vmax}.{u32,s32}.{u32,s32}.{u32,s32} %d, %a, %b : b32 b32 -> b32
{vadd,vsub,vabsdiff,vmin,vmax}.{u32,s32}.{u32,s32}.{u32,s32}.sat %d, %a.{b1,h1}, %b.{b3,h0} : b32 b32 -> b32
{vadd,vsub,vabsdiff,vmin,vmax}.{u32,s32}.{u32,s32}.s32.add %d, %a, %b.h1, %c : b32 b32 b32 -> b32
{vadd,vsub,vmin,vmax}.s32.s32.s32.{min,max} %d, %a, %b.h1, %c : b32 b32 b32 -> b32
{vadd,vsub}.s32.{u32,s32}.u32 %d.{b3,h1}, %a, %b, %c : b32 b32 b32 -> b32
{vshl,vshr}.{u32,s32}.{u32,s32}.u32.{clamp,wrap} %d, %a, %b : b32 shift -> b32
vmad.{u32,s32}.{u32,s32}.{u32,s32} %d, %a.{b2,h1}, %b.h0, %c : b32 b32 b32 -> b32
vmad.s32.s32.s32.{sat.shr7,sat.shr15,shr7} %d, %a, %b.h1, %c : b32 b32 b32 -> b32
vset.{u32,s32}.{u32,s32}.{eq,lt,ge} %d, %a, %b.h0 : b32 b32 -> b32
vset.s32.u32.{ne,gt}.{add,max} %d, %a, %b, %c : b32 b32 b32 -> b32
{vadd2,vsub2,vavrg2,vabsdiff2,vmin2,vmax2,vadd4,vsub4,vavrg4,vabsdiff4,vmin4,vmax4}.{u32,s32}.{u32,s32}.{u32,s32} %d, %a, %b, %c : b32 b32 b32 -> b32
{vadd2,vsub2,vabsdiff2,vmin2,vadd4,vsub4,vabsdiff4,vmax4}.{u32,s32}.{u32,s32}.s32.{sat,add} %d, %a, %b, %c : b32 b32 b32 -> b32
{vadd2,vavrg2,vmax2}.s32.u32.s32 %d.h1, %a.h31, %b.h02, %c : b32 b32 b32 -> b32
{vsub4,vavrg4,vmin4}.s32.s32.u32{,.add} %d.b20, %a.b7240, %b.b0135, %c : b32 b32 b32 -> b32
{vset2,vset4}.{u32,s32}.{u32,s32}.{eq,lt,ge} %d, %a, %b, %c : b32 b32 b32 -> b32
{vset2,vset4}.s32.s32.gt.add %d, %a, %b, %c : b32 b32 b32 -> b32
"""

# operands that count as "out of bounds" NaN: 16 candidates in a, b and c by lane
OOB = """
and.b32 %u, %t, 127; setp.lt.u32 %q, %u, 16; add.u32 %v, %u, 0x7ff0; cvt.u16.u32 %rh, %v; selp.b16 %a, %rh, %a, %q; add.u32 %v, %v, 0xffe0; setp.lt.u32 %r, %u, 48; setp.ge.and.u32 %q, %u, 32, %r; cvt.u16.u32 %rh, %v; selp.b16 %b, %rh, %b, %q; setp.ge.u32 %q, %u, 112; sub.u32 %v, 0xffff, %u; cvt.u16.u32 %rh, %v; selp.b16 %c, %rh, %c, %q; fma.rn.oob{,.relu}.f16 %d, %a, %b, %c : f16 f16 f16 -> f16
and.b32 %u, %t, 127; setp.lt.u32 %q, %u, 16; add.u32 %v, %u, 0x7ff0; cvt.u16.u32 %rh, %v; selp.b16 %a, %rh, %a, %q; add.u32 %v, %v, 0xffe0; setp.lt.u32 %r, %u, 48; setp.ge.and.u32 %q, %u, 32, %r; cvt.u16.u32 %rh, %v; selp.b16 %b, %rh, %b, %q; setp.ge.u32 %q, %u, 112; sub.u32 %v, 0xffff, %u; cvt.u16.u32 %rh, %v; selp.b16 %c, %rh, %c, %q; fma.rn.oob{,.relu}.bf16 %d, %a, %b, %c : bf16 bf16 bf16 -> bf16
"""

INTEGER = """
{add,sub}.{u16,s16,u32,s32,u64,s64} : T T -> T
{add,sub}.sat.s32 : T T -> T
add.{u16x2,s16x2} : b32 b32 -> b32
mul.lo.{u16,s16,u32,s32,u64,s64} : T T -> T
mul.hi.{u16,s16,u32,s32,u64,s64} : T T -> T
mul.wide.{u16,s16} : T T -> b32
mul.wide.{u32,s32} : T T -> b64
mul24.{lo,hi}.{u32,s32} : T T -> T
mad.lo.{u16,s16,u32,s32,u64,s64} : T T T -> T
mad.hi.{u16,s16,u32,s32,u64,s64} : T T T -> T
mad.hi.sat.s32 : T T T -> T
mad.wide.{u16,s16} : T T b32 -> b32
mad.wide.{u32,s32} : T T b64 -> b64
mad24.{lo,hi}.{u32,s32} : T T T -> T
sad.{u16,s16,u32,s32,u64,s64} : T T T -> T
{min,max}.{u16,s16,u32,s32,u64,s64} : T T -> T
{min,max}.{u16x2,s16x2} : b32 b32 -> b32
{min,max}.relu.{s32,s16x2} : b32 b32 -> b32
{abs,neg}.{s16,s32,s64} : T -> T
{and,or,xor}.{b16,b32,b64} : T T -> T
{not,cnot}.{b16,b32,b64} : T -> T
shl.{b16,b32,b64} : T shift -> T
shr.{b16,b32,b64,u16,u32,u64,s16,s32,s64} : T shift -> T
shf.{l,r}.{clamp,wrap}.b32 : b32 b32 shift -> b32
popc.b32 : b32 -> b32
popc.b64 : b64 -> b32
clz.b32 : b32 -> b32
clz.b64 : b64 -> b32
brev.{b32,b64} : T -> T
bfind.{u32,s32} : T -> b32
bfind.{u64,s64} : T -> b32
bfind.shiftamt.{u32,s32,u64,s64} : T -> b32
fns.b32 %d, %a, %b, %c : b32 lane offset -> b32
bfe.{u32,s32,u64,s64} : T len len -> T
bfi.{b32,b64} : T T len len -> T
bmsk.{clamp,wrap}.b32 : len len -> b32
szext.{clamp,wrap}.{u32,s32} : T len -> T
prmt.b32 : b32 b32 b32 -> b32
prmt.b32.{f4e,b4e,rc8,ecl,ecr,rc16} : b32 b32 b32 -> b32
lop3.b32 %d, %a, %b, %c, {0x96,0xe8,0x1b,0xca,0x80,0x2d} : b32 b32 b32 -> b32
dp4a.{u32,s32}.{u32,s32} : b32 b32 b32 -> b32
dp2a.{lo,hi}.{u32,s32}.{u32,s32} : b32 b32 b32 -> b32
{div,rem}.{u16,u32,u64,s16,s32,s64} : T nz#T -> T
setp.{lt,ge}.s32 %q, %a, %b; selp.b32 %d, %a, %b, %q : b32 b32 -> b32
setp.ne.u32 %r, %a, 0; setp.lt.and.u32 %q|%r, %a, %b, !%r; selp.b32 %d, %a, %b, %q : b32 b32 -> b32
slct.b32.s32 : b32 b32 s32 -> b32
slct.b64.s32 : b64 b64 s32 -> b64
slct.b32.f32 : b32 b32 f32 -> b32
set.{eq,ne,lt,le,gt,ge}.u32.{s32,u32} : T T -> u32
set.{lo,ls,hi,hs}.s32.u32 : u32 u32 -> u32
add.cc.u32 %d, %a, %b; addc.u32 %d, %c, 0 : u32 u32 u32 -> u32
sub.cc.u32 %d, %a, %b; subc.u32 %d, %c, %a : u32 u32 u32 -> u32
add.cc.u64 %d, %a, %b; addc.u64 %d, %c, %a : u64 u64 u64 -> u64
mad.lo.cc.u32 %d, %a, %b, %c; madc.hi.u32 %d, %a, %b, %c : u32 u32 u32 -> u32
"""

FLOAT = """
{add,sub,mul}.{,rn.,rz.,rm.,rp.}{f32,f64} : T T -> T
{add,sub,mul}.{rn,rz,rm,rp}.{sat.,ftz.sat.}f32 : T T -> T
{add,sub,mul}.{rn,rz,rm,rp}.ftz.f32 : T T -> T
fma.{rn,rz,rm,rp}.{f32,f64} : T T T -> T
fma.{rn,rz,rm,rp}.ftz.f32 : T T T -> T
fma.{rn,rz,rm,rp}.{,ftz.}sat.f32 : T T T -> T
mad.rn.f32 : T T T -> T
div.{rn,rz,rm,rp}.{f32,f64} : T T -> T
div.{rn,rz,rm,rp}.ftz.f32 : T T -> T
{rcp,sqrt}.{rn,rz,rm,rp}.{f32,f64} : T -> T
{rcp,sqrt}.{rn,rz,rm,rp}.ftz.f32 : T -> T
{min,max}.{,ftz.}{,NaN.}{,xorsign.abs.}f32 : T T -> T
{min,max}.f64 : T T -> T
{min,max}.{,ftz.}{,NaN.}{f16,f16x2} : T T -> T
{min,max}.{,NaN.}{bf16,bf16x2} : T T -> T
{min,max}.{,NaN.}xorsign.abs.{f16,f16x2,bf16,bf16x2} : T T -> T
{abs,neg}.{f32,f64,f16,f16x2,bf16,bf16x2} : T -> T
{abs,neg}.ftz.{f32,f16,f16x2} : T -> T
copysign.{f32,f64} : T T -> T
testp.{finite,infinite,number,notanumber,normal,subnormal}.{f32,f64} %q, %a; selp.u32 %d, 1, 0, %q : F -> u32
set.{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan}.u32.f32 : f32 f32 -> u32
set.{eq,lt,geu,nan}.ftz.u32.f32 : f32 f32 -> u32
set.{eq,lt,geu,nan}.f32.f64 : f64 f64 -> f32
set.{eq,lt,geu,nan}.u32.f16 : f16 f16 -> u32
set.{lt,geu,nan}.{f16x2,u32}.f16x2 : b32 b32 -> b32
set.{lt,geu,nan}.u32.bf16x2 : b32 b32 -> b32
"""

HALF = """
{add,sub,mul}.{,rn.}{f16,f16x2,bf16,bf16x2} : T T -> T
{add,sub,mul}.rn.{ftz.,sat.,ftz.sat.}{f16,f16x2} : T T -> T
fma.rn.{f16,f16x2,bf16,bf16x2} : T T T -> T
fma.rn.{ftz.,sat.,relu.,ftz.relu.}{f16,f16x2} : T T T -> T
fma.rn.relu.{bf16,bf16x2} : T T T -> T
"""

APPROX = """
{sin,cos,lg2}.approx.f32 : T -> T
{sin,cos,lg2,ex2,rcp,sqrt,rsqrt}.approx.ftz.f32 : T -> T
{ex2,rcp,sqrt,rsqrt}.approx.f32 : T -> T
tanh.approx.f32 : T -> T
div.{approx,full}.{,ftz.}f32 : T T -> T
rsqrt.approx.f64 : T -> T
rsqrt.approx.ftz.f64 : T -> T
rcp.approx.ftz.f64 : T -> T
ex2.approx.{f16,f16x2} : T -> T
ex2.approx.ftz.{bf16,bf16x2} : T -> T
tanh.approx.{f16,f16x2,bf16,bf16x2} : T -> T
"""

CONVERT = """
cvt.{u16,u32,u64,s16,s32,s64}.{u16,u32,u64,s16,s32,s64} : T -> F
cvt.{u8,s8}.{u16,u32,u64,s32,s64} : T -> b32
cvt.sat.{u8,s8}.{u32,s32,s64,u64} : T -> b32
cvt.sat.{u16,s16,u32,s32}.{s64,u64} : T -> F
cvt.sat.{u16,s16}.{u32,s32} : T -> F
cvt.sat.{u32,u64}.{s32,s64} : T -> F
cvt.{rn,rz,rm,rp}.{f32,f64}.{u16,s16,u32,s32,u64,s64} : T -> F
cvt.{rn,rz,rm,rp}.f16.{u16,s16,u32,s32,u64,s64} : T -> F
cvt.{rn,rz,rm,rp}.bf16.{u16,s16,u32,s32,u64,s64} : T -> F
cvt.{rni,rzi,rmi,rpi}.{u16,s16,u32,s32,u64,s64}.{f32,f64,f16} : T -> F
cvt.{rni,rzi,rmi,rpi}.{u32,s32,u64,s64}.bf16 : T -> F
cvt.{rni,rzi}.ftz.{u32,s32,u64,s64}.f32 : T -> F
cvt.rzi.{u8,s8}.{f32,f16} : T -> b32
cvt.{rni,rzi,rmi,rpi}.{,ftz.}{,sat.}f32.f32 : T -> T
cvt.{rni,rzi,rmi,rpi}.{,sat.}f64.f64 : T -> T
cvt.{rni,rzi,rmi,rpi}.{,sat.}f16.f16 : T -> T
cvt.{rni,rzi,rmi,rpi}.bf16.bf16 : T -> T
cvt.{ftz.,sat.,ftz.sat.}f32.f32 : T -> T
cvt.f64.f32 : f32 -> f64
cvt.ftz.f64.f32 : f32 -> f64
cvt.sat.f64.f32 : f32 -> f64
cvt.{f32,f64}.{f16,bf16} : T -> F
cvt.{ftz.,sat.}f32.f16 : f16 -> f32
cvt.{rn,rz,rm,rp}.{,ftz.}{,sat.}f32.f64 : f64 -> f32
cvt.{rn,rz,rm,rp}.{f16,bf16}.{f32,f64} : T -> F
cvt.{rn,rz}.{,ftz.}{,sat.}f16.f32 : f32 -> f16
cvt.rn.sat.f16.f64 : f64 -> f16
cvt.{rn,rz}.relu.{f16,bf16}.f32 : f32 -> F
cvt.{rn,rz,rm,rp}.bf16.f16 : f16 -> bf16
cvt.{rn,rz,rm,rp}.f16.bf16 : bf16 -> f16
cvt.{rn,rz}.{,relu.}{f16x2,bf16x2}.f32 : f32 f32 -> F
cvt.rna.tf32.f32 : f32 -> b32
cvt.{rn,rz}.{,relu.}tf32.f32 : f32 -> b32
cvt.rn.satfinite.{,relu.}{e4m3x2,e5m2x2}.f32 : f32 f32 -> b16
cvt.rn.satfinite.{,relu.}{e4m3x2,e5m2x2}.f16x2 : f16x2 -> b16
cvt.rn.{,relu.}f16x2.{e4m3x2,e5m2x2} : T -> f16x2
cvt.pack.sat.{u16,s16}.s32 : s32 s32 -> b32
cvt.pack.sat.{u8,s8,u4,s4,u2,s2}.s32.b32 : s32 s32 b32 -> b32
"""

WARP = """
setp.lt.s32 %q, %a, %b; vote.sync.ballot.b32 %d, {,!}%q, -1 : b32 b32 -> b32
setp.{lt,ge}.u32 %q, %a, 5; vote.sync.{all,any,uni}.pred %q, %q, -1; selp.b32 %d, 1, 0, %q : b32 -> b32
and.b32 %v, %a, 3; match.any.sync.b32 %d, %v, -1 : b32 -> b32
and.b64 %x, %a, 3; match.any.sync.b64 %d, %x, -1 : b64 -> b32
and.b32 %v, %t, {0,1}; match.all.sync.b32 %d|%q, %v, -1; @!%q mov.b32 %d, 77 : b32 -> b32
shfl.sync.{up,down,bfly,idx}.b32 %d|%q, %a, {1,3,16}, {0x1f,0,0x181f,0x1003,0x1c07}, -1; selp.b32 %v, 1, 0, %q; xor.b32 %d, %d, %v : b32 -> b32
shfl.sync.{up,down,bfly,idx}.b32 %d, %a, %b, %c, -1 : b32 lane lane -> b32
redux.sync.{add,min,max}.{u32,s32} %d, %a, -1 : b32 -> b32
redux.sync.{and,or,xor}.b32 %d, %a, -1 : b32 -> b32
and.b32 %v, %t, 7; setp.lt.u32 %q, %v, 5; mov.b32 %d, 0; vote.sync.ballot.b32 %v, %q, -1; @%q redux.sync.add.u32 %d, %a, %v : b32 -> b32
and.b32 %v, %t, 7; setp.gt.u32 %q, %v, 2; mov.b32 %d, 0; vote.sync.ballot.b32 %v, %q, -1; @%q elect.sync %d|%r, %v; @%r add.u32 %d, %d, 100 : b32 -> b32
elect.sync %d|%r, -1; @%r add.u32 %d, %d, 100 : b32 -> b32
setp.lt.s32 %q, %a, 0; barrier.cta.red.popc.aligned.u32 %d, 1, %q : b32 -> b32
setp.lt.s32 %q, %a, 0; bar.red.popc.u32 %d, 0, %q : b32 -> b32
setp.lt.u32 %q, %a, 9; bar.red.{and,or}.pred %q, 0, %q; selp.b32 %d, 1, 0, %q : b32 -> b32
mov.u32 %d, %{laneid,lanemask_eq,lanemask_lt,lanemask_le,lanemask_gt,lanemask_ge} : b32 -> b32
mov.u32 %d, %{tid.x,ntid.x,ctaid.x,nctaid.x,tid.y,nctaid.z,cluster_ctarank,cluster_nctarank,clusterid.x,nclusterid.x} : b32 -> b32
mov.u32 %d, %{total_smem_size,dynamic_smem_size,aggr_smem_size} : b32 -> b32
mov.b32 {%rh, %rl}, %a; mov.b32 %d, {%rl, %rh} : b32 -> b32
mov.b64 {%v, %u}, %a; mov.b64 %d, {%u, %v} : b64 -> b64
"""

MEMORY = """
ld.{relaxed,acquire}.{cta,cluster,gpu,sys}.global.{b32,b64} %d, [%pa] : T -> T
ld.{volatile.,mmio.relaxed.sys.}global.b32 %d, [%pa] : b32 -> b32
ld.{,weak.}{,global.}{ca,cg,cs,lu,cv}.b32 %d, [%pa] : b32 -> b32
ld.global.{,ca.,cg.,cs.}nc.{,L2::128B.}b32 %d, [%pa] : b32 -> b32
ld.global.nc.L1::no_allocate.{,L2::128B.}b32 %d, [%pa] : b32 -> b32
ld.global.L1::{evict_last,evict_first,evict_normal,evict_unchanged}.L2::{64B,256B}.b32 %d, [%pa] : b32 -> b32
createpolicy.fractional.L2::{evict_last,evict_first,evict_normal,evict_unchanged}.b64 %x, 1.0; ld.global.L2::cache_hint.b32 %d, [%pa], %x : b32 -> b32
createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %x, 0.5; ld.global.L2::cache_hint.b32 %d, [%pa], %x : b32 -> b32
prefetch.global.{L1,L2,L2::evict_last,L2::evict_normal} [%pa]; mov.b32 %d, %a : b32 -> b32
prefetchu.L1 [%pa]; mov.b32 %d, %a : b32 -> b32
ld.global.{u8,s8,u16,s16} %d, [%pa] : b32 -> b32
ld.global.{u8,s8,u16,s16,u32,s32} %d, [%pa] : b64 -> b64
st.{relaxed,release}.{cta,cluster,gpu,sys}.global.{b32,b64} [%pa], %b; ld.global.T %d, [%pa] : T T -> T
st.{volatile.,mmio.relaxed.sys.}global.b32 [%pa], %b; ld.global.b32 %d, [%pa] : b32 b32 -> b32
st.{,weak.}{,global.}{wb,cg,cs,wt}.b32 [%pa], %b; ld.global.b32 %d, [%pa] : b32 b32 -> b32
st.global.{,L1::evict_last.,L1::no_allocate.}b32 [%pa+0], %b; ld.global.b32 %d, [%pa] : b32 b32 -> b32
st.global.{b8,b16} [%pa], %b; ld.global.b32 %d, [%pa] : b32 b32 -> b32
fence.{sc,acq_rel}.{cta,cluster,gpu,sys}; mov.b32 %d, %a : b32 -> b32
membar.{cta,gl,sys}; mov.b32 %d, %a : b32 -> b32
isspacep.{global,shared,local,const,shared::cta,shared::cluster} %q, %pa; selp.b32 %d, 1, 0, %q : b32 -> b32
cvta.to.global.u64 %x, %pa; cvta.global.u64 %x, %x; ld.b32 %d, [%x] : b32 -> b32
"""


def cases() -> Iterator[Case]:
    """Every elementwise case."""
    for family, text in (
        ("integer", INTEGER),
        ("video", VIDEO),
        ("half", OOB),
        ("float", FLOAT),
        ("half", HALF),
        ("approx", APPROX),
        ("cvt", CONVERT),
        ("warp", WARP),
        ("memory", MEMORY),
    ):
        yield from table(text, family)
