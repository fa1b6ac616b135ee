"""evoformer.torch: the two ops as PyTorch modules, and whole models patched with them.

``OuterProductMean`` and ``TriangleMultiplication`` have the constructor and the parameter names of the modules that they
replace; keyword arguments give every published variant. ``from_openfold``, ``from_boltz``, ``from_alphafold3`` and
``from_protenix`` make one from another project's module or arrays; ``patch(model)`` swaps all in a model.

The operators behind them are ``torch.ops.evoformer.outer_product_mean`` and ``.triangle_multiplication``. They work under
``torch.compile``, autocast, CUDA graphs, on the current stream. Gradients are computed by PyTorch's own operations from the
inputs again: right, and not fused yet.
"""
from ._modules import OuterProductMean, TriangleMultiplication
from ._published import PatchReport, from_alphafold3, from_boltz, from_openfold, from_protenix, patch

__all__ = ["OuterProductMean", "PatchReport", "TriangleMultiplication", "from_alphafold3", "from_boltz",
           "from_openfold", "from_protenix", "patch"]
