"""Op specifications, kernel declarations and the choice among kernels, with reasons. Knows no backend by name."""

from deepinfer.registry.call import Call, Cost, Kind, Param, TensorMeta
from deepinfer.registry.dispatch import Op
from deepinfer.registry.explain import Explanation, explain_call
from deepinfer.registry.fallback import fallback
from deepinfer.registry.kernel import Kernel, Plan, PortableKernel
from deepinfer.registry.kernels import pin
from deepinfer.registry.spec import EXACT, Case, ErrorCase, OpSpec, Tolerance
from deepinfer.registry.specs import all_specs, get_spec, register, spec_names

__all__ = [
    "EXACT", "Call", "Case", "Cost", "ErrorCase", "Explanation", "Kernel", "Kind", "Op", "OpSpec", "Param", "Plan",
    "PortableKernel", "TensorMeta", "Tolerance", "all_specs", "explain_call", "fallback", "get_spec", "pin",
    "register", "spec_names",
]
