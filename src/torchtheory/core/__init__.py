"""The vocabulary: errors, checks, intervals, claims, statements, records, the catalogue."""
