"""Growth functions, VC dimension and the bounds that follow."""
