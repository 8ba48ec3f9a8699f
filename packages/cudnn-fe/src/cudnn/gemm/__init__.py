"""GEMM fusions by the module paths of cudnn-frontend 1.32."""
