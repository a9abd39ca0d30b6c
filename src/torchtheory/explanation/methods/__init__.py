"""Explanations beside relevance propagation: gradients, Taylor, occlusion, LIME, Shapley."""
