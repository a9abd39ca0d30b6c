"""Every parameter of every lab says what it means."""

from __future__ import annotations

import pytest

from torchtheory.labs.engine.registry import Lab, find_lab, lab, labs
from torchtheory.labs.engine.run import Run

#: Parameters that still owe their meaning: nothing is added here, and what is explained goes.
OWED = {
    "adaptive-against-fixed-basis": "dimensions seeds units members",
    "arithmetic-circuits": "draws sweeps",
    "barron-boundaries": "seeds points",
    "barron-constants": "draws points",
    "barron-networks": "seeds points",
    "barron-sup-norm": "seeds parts",
    "bernstein-polynomials": "doublings",
    "caratheodory-pruning": "draws",
    "cartoon-functions": "resolution cartoons doublings",
    "code-length": "functions halvings labels",
    "compositional-functions": "digits cells points",
    "continuous-selection": "starts",
    "convnets-on-functions": "images finest",
    "convolution-structure": "size windows",
    "convolutional-equivalence": "points doublings",
    "convolutional-interpolation": "samples draws",
    "decision-functions": "samples widths",
    "density-with-derivatives": "widths",
    "depth-separation-cards": "steps seeds parameters dimension",
    "edge-networks": "doublings points",
    "eldan-shamir": "points",
    "exact-interpolation": "samples pixels",
    "filter-factorization": "units",
    "finite-element-networks": "cells points degrees",
    "function-norms": "waves doublings",
    "hp-networks": "levels points",
    "infinite-width-representation": "offsets draws",
    "kolmogorov-superposition": "finest points refinement",
    "label-coding": "cells sines",
    "manifold-networks": "samples cells draws",
    "maurey-sampling": "draws width",
    "minterm-networks": "bits",
    "multiplication-network": "levels points polynomials",
    "narrow-networks": "strings networks cells steps",
    "network-objects": "points",
    "one-neuron-resnets": "folds pieces samples",
    "option-payoffs": "largest prices",
    "quantized-networks": "points",
    "radial-networks": "points steps seeds parameters",
    "random-steps": "seeds points draws",
    "rates-table": "dimensions degrees directions",
    "rational-networks": "points",
    "recurrent-sequences": "draws width longest ending",
    "recurrent-simulation": "widths samples forever",
    "recurrent-systems": "states inputs outputs time networks",
    "residual-memorization": "largest depths steps",
    "risk-decomposition": "trials sizes",
    "shallow-smooth-rates": "largest_degree panels",
    "shearlets": "size scales angles",
    "smooth-gates": "factors points",
    "sobolev-networks": "points refinements",
    "sparse-grid-networks": "level points",
    "stone-weierstrass": "cases",
    "stratified-steps": "pairs draws points",
    "sum-product-networks": "points",
    "wavelet-networks": "most_terms resolution greedy",
    "convolution-matrices": "length side",
    "convolution-spectra": "side channels layers",
    "convolutional-pyramid": "steps filters",
    "edge-filters": "side",
    "filter-gradients": "images side steps",
    "pooling-maps": "images side",
    "receptive-fields": "networks draws channels",
    "resnet9": "width train test epochs",
}


def unexplained(found: Lab) -> str:
    return " ".join(p.name for p in found.parameters.values() if not p.meaning.strip())


def test_every_parameter_of_a_lab_has_a_meaning() -> None:
    found = {name: unexplained(one) for name, one in labs().items()}
    assert {name: names for name, names in found.items() if names} == OWED


@pytest.mark.usefixtures("own_registry")
def test_a_parameter_without_a_meaning_is_seen() -> None:
    def function(run: Run, cases: int = 3, width: int = 2, depth: int = 1) -> None:
        """Networks are drawn, each with `depth` layers.

        Args:
            cases: random networks.
        """

    lab("zz-meanings", room="nets", covers=["N-08"], title="A test")(function)
    assert unexplained(find_lab("zz-meanings")) == "width"
