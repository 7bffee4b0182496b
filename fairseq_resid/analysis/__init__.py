"""Analysis of trained models: coefficients, norms and gradients of every site, attention maps, learning curves."""
