"""What a study searches on a given cluster: its candidates, their order, and what is known of them."""
