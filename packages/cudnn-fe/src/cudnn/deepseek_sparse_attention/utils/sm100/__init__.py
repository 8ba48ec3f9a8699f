"""Helpers of DeepSeek sparse attention by their module path in cudnn-frontend 1.32."""
