"""What ranks share: how they meet, their process groups, collectives with gradients, and state cut over ranks."""
