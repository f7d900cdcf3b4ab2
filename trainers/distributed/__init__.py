"""Communication between ranks: rendezvous, process groups, collectives with gradients, state cut over ranks."""
