"""What a study searches on the cluster it is given: which candidates, in which order, and what is known of them."""
