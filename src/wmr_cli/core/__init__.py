"""Tensors, no names: margins, noise, norms, the one ascent loop, objectives, and the contracts that plugins meet."""
