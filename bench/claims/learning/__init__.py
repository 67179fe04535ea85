"""Claims about learning, each measured on the small chain policy of the experiment `trees`."""
