"""What changed between two audits, beyond their error bars."""
