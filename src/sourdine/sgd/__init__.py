"""DP-SGD for any PyTorch model. So far: how lots are drawn."""
