"""Labels that mean nothing: do networks fit them, and what does that say?"""
