"""The subject of a study on a given cluster: its candidates, their order, and what is known of them."""
