"""Many runs under one plan: what is compared, how it is tuned, who runs it, what the figures say."""
