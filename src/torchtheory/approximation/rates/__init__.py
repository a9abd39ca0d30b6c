"""How large a network must be and may be: theorems, tables, lower bounds, bits."""
