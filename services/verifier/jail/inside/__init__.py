"""Code that runs in a zygote: it forks, confines and watches runs. It holds nothing of a row."""
