"""Networks of infinite width: their kernels, and how fast wide ones come near them."""
