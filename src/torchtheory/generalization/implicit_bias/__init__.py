"""Which of many solutions gradient methods find: least norm, largest margin, balanced layers."""
