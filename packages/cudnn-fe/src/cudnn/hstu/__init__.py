"""HSTU's operations by their module paths in cudnn-frontend 1.32."""
