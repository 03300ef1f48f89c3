"""Jobs that run side by side: on this machine's cores, or on a cluster's."""
