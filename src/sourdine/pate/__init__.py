"""PATE: teachers vote on public inputs, and only noisy answers leave the house."""
