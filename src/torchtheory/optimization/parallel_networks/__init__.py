"""Sums of subnetworks: the convex problem under them, and certificates of global optimality."""
