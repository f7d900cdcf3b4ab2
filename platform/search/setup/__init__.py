"""The setup of a study on a given cluster: its options, its candidates, their order, and what is known of them."""
