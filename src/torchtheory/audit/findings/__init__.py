"""The findings of the audit, one module per topic: a problem goes in, claims come out."""
