"""Softmax attention by its module paths in cudnn-frontend 1.32: this one holds no names."""
