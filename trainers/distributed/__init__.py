"""The things that ranks share: rendezvous, process groups, collectives with gradients, state cut over ranks."""
