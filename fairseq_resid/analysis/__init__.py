"""What a trained model learned: coefficients, norms and gradients of every site, attention, learning curves."""
