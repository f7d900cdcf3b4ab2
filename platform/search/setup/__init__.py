"""The setup of a study on a given cluster: its options, its candidates in order, and what is known of them."""
