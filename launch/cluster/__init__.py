"""Env workers and their controller in containers: images, a compose file, Kubernetes manifests."""
