"""What a running service tells about itself: metrics, and the port that serves them and the health probes."""
