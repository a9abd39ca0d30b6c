"""How flat the loss is around the parameters, and what rescaling does to that."""
