"""Mutants: library functions made wrong on purpose, which a lab or a test must notice.

`python -m torchtheory.labs.engine.mutants --room nets` (or `make mutants ROOM=nets`) runs the
room's labs once and watches which library functions they take numbers from (`calls`). Each of
these functions is then made wrong in a few ways (`mutations`): what it returns is halved, doubled
or turned in sign, a term of a sum is dropped, a constant changed. With each mutant the labs that
call the function are run, and its tests if no lab turns red (`trial`, `hunt`). A mutant that
survives points at a promise that nobody checks.
"""
