"""What others have measured on GPUs and published."""
